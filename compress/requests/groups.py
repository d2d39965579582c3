"""Fields that requests share: what they write, data and its columns, and where they compute."""

import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Any, Literal, cast

from compress.data import Example, LabelledData, Overlap, TextSource, content_sha256, load_rows, open_text
from compress.data.formats.text_files import FORMATS
from compress.escaping.uris import is_uri, local_path
from compress.fields import fields_of, is_given, kind_of, option, validated
from compress.files.remote import cache_place
from compress.models.compute import PRECISIONS, TRACKERS, Compute
from compress.models.model_dir import Model
from compress.models.output_dir import Stage, check_free, ended_early, keep_apart, places_of
from compress.recipes.training import LEAST_MAX_LENGTH
from compress.requests import FileList, Request, Result, command_name

MOST_THREADS = 1024  # more than any machine has cores; libraries end without a word when they get no more

MAX_LENGTH = option(
    default=None,
    ge=LEAST_MAX_LENGTH,
    help="Cut texts to so many tokens; by default the recipe says it, or the lengths of the training rows do.",
)

PRECISION = option(
    default="auto",
    metavar="NAME",
    help="Of trainings: float32, bfloat16, or auto, the recipe's: bfloat16 where it is faster and the model allows it.",
)
REPORT_TO = option(
    default=None,
    decides=False,
    help="Report the training here too, by this package and its own variables (WANDB_MODE, MLFLOW_TRACKING_URI, "
    "TRACKIO_DIR); tensorboard writes to $TENSORBOARD_LOGGING_DIR or ./runs.",
)
FORCE = option(
    default=False,
    decides=False,
    help="Move an existing output aside, to NAME.old, or discard unfinished work for it.",
)


class Made(Exception):
    """What is asked for lies in the cache."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path


@validated
class Written(Request[Result]):
    """A request whose result is a directory."""

    _: KW_ONLY
    force: bool = FORCE

    def begin(
        self,
        parents: Mapping[str, Model | None],
        *,
        data: Sequence[Mapping[str, Any]] | None = None,
        keep: bool = True,
        **opened: Any,
    ) -> AbstractContextManager[Stage]:
        """Begin the stage in its working directory; what it is asked for is the key that unfinished work is resumed by.

        Without an output the result lies in the cache, in a folder of its key.

        Args:
            parents: as of :meth:`compress.models.output_dir.Stage.begin`, and so are ``data`` and ``keep``.
            opened: what of the request is open, by its field, and what else decides the result.

        Raises:
            Made: there is no output, and the cache has the result.
        """
        key = self.key(**{**parents, **opened})
        name = command_name(type(self)).rpartition(" ")[2]
        output = getattr(self, "output", None)
        if output is None:
            content = [_content_sha256(one) for value in opened.values() for one in _sources(value)]
            decides = json.dumps([name, key, data, content], sort_keys=True, default=str)
            of = hashlib.sha256(decides.encode()).hexdigest()
            recipe = getattr(self, "student", None) or name
            output = cache_place("made", name) / f"{getattr(recipe, 'name', Path(str(recipe)).stem)}-{of[:16]}"
            if output.is_dir() and not self.force:
                raise Made(output)
        return Stage.begin(
            name,
            output,
            parents=parents,
            settings=key,
            data=data,
            seed=getattr(self, "seed", None),
            force=self.force,
            keep=keep,
        )

    def check_output(self) -> None:
        """Refuse, before the work, an output that exists, or that overlaps an input."""
        output = getattr(self, "output", None)
        if output is None:
            return
        keep_apart(places_of(output), local_inputs(self))
        check_free(output, self.force or bool(ended_early(output)))

    def run(self) -> Result:
        self.check_output()
        try:
            return super().run()
        except Made as made:
            return self.open_made(made.path)

    def open_made(self, path: Path) -> Result:
        """Open a result that the cache has."""
        return cast(Result, Model.open(path, classifier=False))


def _sources(value: Any) -> list[TextSource]:
    return [one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, TextSource)]


def _content_sha256(source: TextSource) -> str:
    """Hash the rows of a source with their values: its key has its place, which the same file keeps when it changes."""
    return content_sha256(replace(row, tags=row.values) if row.values else row for row in source)


def named_inputs(request: Request[Any]) -> Iterator[str]:
    """Yield the files, directories, patterns and URIs that a request names to be read."""
    for name, field in fields_of(request).items():
        value = getattr(request, name)
        if kind_of(field) in {"model", "recipe", "text", "rows", "labels", "file"}:
            for one in value if isinstance(value, tuple) else [value]:
                given = local_path(one) if isinstance(one, str) else getattr(one, "path", one)
                if isinstance(given, str | os.PathLike):
                    yield os.fspath(given)


def local_inputs(request: Request[Any]) -> Iterator[str]:
    """Yield the files and directories of this machine that a request names to be read."""
    for given in named_inputs(request):
        if not is_uri(given):
            yield from glob.glob(given) or [given]


@validated
class PlainColumns:
    """The columns of texts and the format of data, where they cannot be guessed."""

    _: KW_ONLY
    text_column: str | None = option(
        default=None,
        metavar="NAME",
        decides=False,
        needs=("data",),
        help="Column of the text; from 0 without a header; or data.text.",
    )
    text_pair_column: str | None = option(
        default=None, metavar="NAME", decides=False, needs=("data",), help="Column of the second text of a pair."
    )
    format: Literal[tuple(FORMATS)] | None = option(  # type: ignore[valid-type]
        default=None,
        metavar="FORMAT",
        decides=False,
        needs=("data",),
        help="csv, tsv, tsv-unquoted, jsonl, text, ...",
    )

    @property
    def columns(self) -> dict[str, Any]:
        """The names, as :func:`compress.data.open_rows` takes them."""
        names = ("text_column", "text_pair_column", "label_column", "label_map", "format")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}


@validated
class TextColumns(PlainColumns):
    """Columns of data whose labels, if any, are known to be there."""

    _: KW_ONLY
    label_column: str | None = option(
        default=None, metavar="NAME", decides=False, needs=("data",), help="Column of the label or score."
    )

    def read(self, role: str) -> list[Example]:
        """Read the labelled rows of a field into memory, and say how they were understood; none without it."""
        given = getattr(self, role)
        if isinstance(given, list) and all(isinstance(row, Example) for row in given):
            return given  # of a study or a search, which has read them
        return load_rows(given, role=role, **self.columns) if is_given(given) else []

    def open_text(
        self, field: str = "unlabeled", *, rows: int | None = None, keep_empty: bool = False
    ) -> TextSource | None:
        """Open a field for its text alone, cut to ``rows`` spread evenly; None without it. See :func:`open_text`."""
        given = getattr(self, field)
        if not is_given(given):
            return None
        beside = next((one for role in ("train", "validation") if is_given(one := getattr(self, role, None))), None)
        parts = given if isinstance(given, FileList) else (given,)
        return open_text(*parts, role=field, rows=rows, keep_empty=keep_empty, beside=beside, **self.columns)


@validated
class LabelColumns(TextColumns):
    """Columns of data whose labels are read."""

    _: KW_ONLY
    label_map: Any = option(
        default=None,
        metavar="FILE",
        decides=False,
        needs=("data",),
        help='What labels of data mean: {"0": "bad", ...} in JSON or TOML.',
    )


@validated
class Checks:
    """Roles of rows, and what they are scored by."""

    _: KW_ONLY
    overlap: Overlap = option(
        default="few",
        decides=False,
        needs=("train", "validation"),
        flags={
            "--drop-overlap": (
                "drop",
                "Leave all rows that occur in two roles out of the earlier one; by default a few are left out, and "
                "more than 1% of either are refused.",
            ),
            "--refuse-overlap": ("refuse", "Refuse any row that occurs in two roles."),
        },
        help="Rows that occur in two roles: leave a few out of the earlier one and refuse more than 1% of either "
        "(few), leave out all (drop), or refuse any (refuse).",
    )
    metric: str | None = option(
        default=None,
        metavar="NAME",
        needs=("validation", "control"),
        help="Default: accuracy; for regression pearson.",
    )

    @property
    def labelled(self) -> LabelledData:
        """The labelled rows of a stage, read into memory."""
        data: Any = self
        return LabelledData(data.read("train"), data.read("validation"), overlap=self.overlap, metric=self.metric)


@validated
class Placing:
    """Where a stage computes."""

    _: KW_ONLY
    device: Literal["auto", "cpu", "cuda"] = option(
        default="auto", decides=False, help="Where to compute; auto is cuda where there is one."
    )
    threads: int = option(
        default=0,
        ge=0,
        le=MOST_THREADS,
        decides=False,
        help="CPU threads; 0 is one for each core that no other program keeps busy.",
    )

    @property
    def compute(self) -> Compute:
        names = Compute.__dataclass_fields__
        return Compute(**{name: getattr(self, name) for name in names if hasattr(self, name)})


@validated
class Seeded(Placing):
    """A stage that draws at random."""

    _: KW_ONLY
    seed: int = option(default=0, ge=0, help="Seed of everything random.")


@validated
class Searching(Seeded):
    """A stage that trains."""

    _: KW_ONLY
    precision: Literal[PRECISIONS] = PRECISION  # type: ignore[valid-type]


@validated
class Trained(Searching):
    """A stage that trains, and may report its training."""

    _: KW_ONLY
    report_to: Literal[TRACKERS] | None = REPORT_TO  # type: ignore[valid-type]
