"""A stage is declared once: a class whose fields are typed by what they are.

From the class follow the command (:mod:`compress.cli.commands`), the Python function, validation, the key by which
unfinished work is resumed, and the command that makes a result again::

    @validated
    class Distill(Request["Model"], Written, Checks, TextColumns, Trained):
        '''Train a student to match its teacher.'''

        stage = "compress.training.distill:distill"

        teacher: AnyModel = option(help="The teacher: a directory or hub name.", metavar="DIR")
        student: Recipe = option(help="A name from 'compress list students', or a .toml file.", metavar="RECIPE")
        output: Output = OUTPUT
        _: KW_ONLY
        rows: int | None = option(default=None, ge=0, help="Use only so many unlabelled rows, spread evenly.")

    distill = function(Distill)

The stage takes the request: ``def distill(request: Distill) -> Model``. Importing this package imports no torch.
"""

import glob
import hashlib
import importlib
import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, ParamSpec, TypeVar, cast

import pydantic

from compress.data import Example, LabelledData, Overlap, TextSource, content_sha256, load_rows, open_text
from compress.data.formats.text_files import FORMATS
from compress.data.windows import Windows
from compress.errors import CompressError, MissingPackage
from compress.escaping import is_uri, local_path, text_without_secrets
from compress.fields import (
    Holds,
    declared_of,
    fields_of,
    flag_of,
    group,
    is_default,
    is_given,
    kind_of,
    option,
    snake_case,
    validated,
    without_effect,
)
from compress.files.remote import cache_place
from compress.host import without_home
from compress.models.compute import MOST_THREADS, PRECISIONS, TRACKERS, Compute
from compress.models.model_dir import CascadeDir, Model
from compress.models.output_dir import Stage, check_free, ended_early, keep_apart, places_of
from compress.progress import Progress, calling, silent
from compress.recipes import LEAST_MAX_LENGTH, MOST_MAX_LENGTH, deciding

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def _accept(accepted: Callable[[Any], bool], allowed: str) -> pydantic.BeforeValidator:
    def check(value: Any) -> Any:
        if value is not None and (value == "" if isinstance(value, str) else not accepted(value)):
            raise ValueError(f"is not {allowed}")
        return value

    return pydantic.BeforeValidator(check)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike | Model | CascadeDir)


def _progress_of(value: Any) -> Any:
    """Take a callback too; what shows progress itself takes a title and a total."""
    is_callback = callable(value) and len(inspect.signature(value).parameters) == 3
    return calling(value) if is_callback else value


class FileList(tuple[str, ...]):
    """Several files, patterns or URIs that are read as one text; a list of strings is a list of texts."""


# What a field holds. Data is checked where it is opened, which says more.
AnyModel = Annotated[
    Model | str | os.PathLike[str],
    pydantic.SkipValidation,
    Holds("model"),
    _accept(_is_path, "a model; give a directory, a hub name or an opened model"),
]
Recipe = Annotated[
    Any,
    Holds("recipe"),
    _accept(lambda value: _is_path(value) or is_dataclass(value), "a recipe; give its name or a .toml file"),
]
Text = Annotated[Any, Holds("text")]  # see compress.data.open_text
Rows = Annotated[Any, Holds("rows")]
File = Annotated[
    str | os.PathLike[str],
    pydantic.SkipValidation,
    Holds("file"),
    _accept(_is_path, "a path; give that of a file to read"),
]
Output = Annotated[
    str | os.PathLike[str] | None,
    pydantic.SkipValidation,
    Holds("output"),
    _accept(_is_path, "a path; give that of a directory to write"),
]
Columns = Annotated[tuple[str, ...], Holds("columns"), pydantic.Strict(False)]  # A,B on the command line
WindowsGiven = Annotated[
    Any,
    Holds("windows"),
    pydantic.BeforeValidator(lambda given: given if given is None else Windows.read(given)),
]
if TYPE_CHECKING:  # what Python may give; at run time it becomes a tuple, or what shows progress
    Labels = Sequence[Any]
    Shown = Any  # a Progress, or a function of title, steps done and all steps
    Paths = Sequence[Any]
    Names = Sequence[str]
    Models = Sequence[Any]
else:
    Labels = Annotated[tuple[Any, ...], Holds("labels"), pydantic.Strict(False)]
    Shown = Annotated[Progress, pydantic.BeforeValidator(_progress_of)]
    Models = Annotated[tuple[AnyModel, ...], Holds("model"), pydantic.Strict(False)]
    Paths = Annotated[tuple[Any, ...], pydantic.Strict(False)]
    Names = Annotated[tuple[str, ...], pydantic.Strict(False)]
Duration = Annotated[float, Holds("duration")]  # seconds; 30s, 15m or 2h on the command line
Percent = Annotated[float | None, Holds("percent")]  # a share; 95% or 0.95 on the command line
Numbers = Annotated[tuple[int, ...], Holds("numbers"), pydantic.Strict(False)]
Assignments = Annotated[Mapping[str, Any], Holds("assignments")]  # NAME=VALUE on the command line

# In Python without one the result lies in the cache.
OUTPUT = option(
    default=None, help="Directory to write; it must not exist.", metavar="DIR", decides=False, required=True
)


@validated
class Request(Generic[Result]):
    """What a stage is asked for."""

    stage: ClassVar[str] = ""  # module:function, which takes the request
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # in place of what a group declares
    called: ClassVar[str] = ""  # its command, where that is not its name

    _: KW_ONLY
    progress: Shown = option(
        default=silent,
        decides=False,
        has_option=False,
        help="A function of a phase's title, the steps done and all steps (None: unknown).",
    )

    def __post_init__(self) -> None:
        if faults := [*without_effect(self), *self.faults()]:
            raise CompressError("; ".join(faults))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the values that no field says alone, in the user's words."""
        yield from ()

    def key(self, **opened: Any) -> dict[str, Any]:
        """Return what decides the result, as JSON values.

        Args:
            opened: inputs that are open, by their fields: their content decides, and not where it lies; and what else
                decides.
        """
        deciding = [name for name, field in fields_of(self).items() if declared_of(field).decides]
        asked = {name: getattr(self, name) for name in deciding}
        return {name: _key_of(value) for name, value in sorted({**asked, **opened}.items())}

    @property
    def command(self) -> str:
        """The command line of this request, without home directories and secrets of URIs."""
        words = [word for name, value in self.given().items() for word in self._words(name, value)]
        return without_home(shlex.join(["compress", *command_name(type(self)).split(), *words]))

    def given(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the fields that have an option and are not at their default, or those of some names."""
        known = fields_of(self)
        declared = {name: declared_of(field) for name, field in known.items()}
        there = [name for name, about in declared.items() if about.has_option or about.argument]
        chosen = [name for name in names if name in there] if names is not None else there
        # What is taken by position comes first.
        chosen = sorted(chosen, key=lambda name: not declared[name].argument)
        return {name: value for name in chosen if not is_default(value := getattr(self, name), known[name])}

    def _words(self, name: str, value: Any) -> Iterator[str]:
        """Yield the option of a field with its value; data in memory is called by its metavar."""
        field = fields_of(self)[name]
        declared, flag = declared_of(field), flag_of(name, field, value)
        number = "{:.10g}s" if kind_of(field) in {"duration", "seconds"} else "{:.6g}"
        if kind_of(field) == "share":
            value = "/".join(map(str, value))
        if kind_of(field) == "windows":
            value = str(value)
        if isinstance(value, Mapping) and kind_of(field) in {"assignments", "class-weights"}:
            value = tuple(f"{key}={one if isinstance(one, str) else json.dumps(one)}" for key, one in value.items())
            value = ",".join(value) if kind_of(field) == "class-weights" else value
        for one in value if isinstance(value, tuple) else [value]:
            named = isinstance(one, int | float) or _is_path(one)
            shown = number.format(one) if isinstance(one, float) else str(getattr(one, "path", one))
            said = text_without_secrets(shown) if named else declared.metavar
            is_flag = declared.flags or isinstance(one, bool)
            yield from [flag] if is_flag else [said] if declared.argument else [flag, said]

    def run(self) -> Result:
        """Run the stage.

        Raises:
            CompressError: for anything about the request that the user can put right.
        """
        module, _, name = self.stage.partition(":")
        try:
            stage = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            raise MissingPackage(error) from None
        return cast(Result, stage(self))


def _key_of(value: Any) -> Any:
    if isinstance(value, TextSource):
        return sorted(map(str, value.identity))
    if isinstance(value, Model):
        return [value.sha256, str(value.given_windows)] if value.given_windows else value.sha256
    if isinstance(value, Windows):
        return str(value)
    if hasattr(value, "manifest"):  # of labels
        return value.manifest.files
    if is_dataclass(value):
        return deciding(value)
    if isinstance(value, Mapping):
        return {str(key): _key_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, Example) for item in value):
            return content_sha256(value)
        return [_key_of(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def command_name(declared: type[Request[Any]]) -> str:
    """Return the words of a request's command, such as ``labels import``."""
    return declared.called or snake_case(declared)


def function(declared: Callable[Parameters, Request[Result]]) -> Callable[Parameters, Result]:
    """Return the Python function of a request: it takes the fields, runs the stage and returns what that makes."""
    made = cast(Any, declared)

    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        return declared(*arguments, **named).run()

    call.__name__ = call.__qualname__ = snake_case(made)
    call.__module__ = made.__module__
    described = "\n".join(f"    {name}: {field.description}" for name, field in fields_of(made).items())
    call.__doc__ = f"{inspect.getdoc(made)}\n\nArgs:\n{described}"
    known, own = fields_of(made), inspect.signature(made)
    # Model, Text and so on by their names: what checks them is no annotation to read.
    shown = [
        one.replace(annotation=kind_of(known[one.name]).capitalize() or one.annotation)
        for one in own.parameters.values()
    ]
    call.__signature__ = own.replace(parameters=shown, return_annotation=own.empty)  # type: ignore[attr-defined]
    return call


# Fields that requests share: what they write, data and its columns, and where they compute.

MAX_LENGTH = option(
    default=None,
    ge=LEAST_MAX_LENGTH,
    le=MOST_MAX_LENGTH,
    help="Cut texts to so many tokens; by default the recipe says it, or the lengths of the training rows do.",
)
WINDOWS = option(
    default=None,
    metavar="SIZE,STRIDE[,POOLING]",
    help="Read long documents by windows of so many tokens, one every so many, whose logits are pooled: mean, max or "
    "attention.",
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


@group
class Written(Request[Result]):
    """A request whose result is a directory."""

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
            given = [value if isinstance(value, list | tuple) else (value,) for value in opened.values()]
            # The key of a source has its place, which the same file keeps when it changes.
            content = [
                content_sha256(
                    replace(row, tags=(*row.values, row.query)) if row.values or row.query else row for row in one
                )
                for values in given
                for one in values
                if isinstance(one, TextSource)
            ]
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
        if output is None or getattr(self, "dry_run", False):
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


class Findings(Written[Path]):
    """A request whose result is a directory of findings, and no model."""

    def open_made(self, path: Path) -> Path:
        return path


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


@group
class TextColumns:
    """Columns and the format of data, where they cannot be guessed; labels, if any, are known to be there."""

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
    label_column: str | None = option(
        default=None,
        metavar="NAME",
        decides=False,
        needs=("data",),
        help="Column of the label or score.",
    )
    label_separator: str | None = option(
        default=None,
        metavar="MARK",
        decides=False,
        needs=("data",),
        help="Mark between several labels.",
    )

    @property
    def columns(self) -> dict[str, Any]:
        """The names, as :func:`compress.data.open_rows` takes them."""
        columns = ("text_column", "text_pair_column", "label_column", "query_column")
        names = (*columns, "label_separator", "label_map", "format")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def read(self, role: str) -> list[Example]:
        """Read the labelled rows of a field into memory, and say how they were understood; none without it."""
        given = getattr(self, role)
        if isinstance(given, list) and all(isinstance(row, Example) for row in given):
            return given  # of a study or a search, which has read them
        return load_rows(given, role=role, **self.columns) if is_given(given) else []

    def open_text(self, field: str = "unlabeled", *, rows: int | None = None, **options: Any) -> TextSource | None:
        """Open a field for its text alone, cut to ``rows`` spread evenly; None without it. See :func:`open_text`."""
        given = getattr(self, field)
        if not is_given(given):
            return None
        beside = next((one for role in ("train", "validation") if is_given(one := getattr(self, role, None))), None)
        parts = given if isinstance(given, FileList) else (given,)
        return open_text(*parts, role=field, rows=rows, beside=beside, **options, **self.columns)


@group
class LabelColumns(TextColumns):
    """Columns of data whose labels are read."""

    label_map: Any = option(
        default=None,
        metavar="FILE",
        decides=False,
        needs=("data",),
        help='What labels of data mean: {"0": "bad", ...} in JSON or TOML.',
    )


@group
class QueryColumns(LabelColumns):
    """Columns of data whose rows a metric may rank."""

    query_column: str | None = option(
        default=None,
        metavar="NAME",
        decides=False,
        needs=("data",),
        help="Column of the query whose rows a metric such as ndcg ranks; by default rows of one first text.",
    )


@group
class Checks:
    """Roles of rows, and what they are scored by."""

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
        help="What selects and judges, such as macro-f1 or average-precision. Default: that of the task.",
    )

    @property
    def labelled(self) -> LabelledData:
        """The labelled rows of a stage, read into memory."""
        data: Any = self
        return LabelledData(data.read("train"), data.read("validation"), overlap=self.overlap, metric=self.metric)


@group
class Placing:
    """Where a stage computes."""

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
        return Compute(**{name: getattr(self, name) for name in Compute.__dataclass_fields__ if hasattr(self, name)})


@group
class Seeded(Placing):
    """A stage that draws at random."""

    seed: int = option(default=0, ge=0, help="Seed of everything random.")


@group
class Searching(Seeded):
    """A stage that trains."""

    precision: Literal[PRECISIONS] = PRECISION  # type: ignore[valid-type]


@group
class Trained(Searching):
    """A stage that trains, and may report its training."""

    report_to: Literal[TRACKERS] | None = REPORT_TO  # type: ignore[valid-type]
