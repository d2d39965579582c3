"""What labelling is asked for."""

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from compress.errors import CompressError, refuse
from compress.escaping import is_uri, without_secrets
from compress.fields import Holds, fields_of, flag_of, group, option, validated
from compress.files import read_text
from compress.recipes.training import LEAST_MAX_LENGTH, MOST_MAX_LENGTH
from compress.requests import (
    OUTPUT,
    WINDOWS,
    AnyModel,
    Columns,
    Duration,
    File,
    LabelColumns,
    Labels,
    Output,
    Percent,
    Placing,
    Request,
    Rows,
    Text,
    WindowsGiven,
    Written,
    function,
    named_inputs,
)

MOST_PARTS = 10**9
LANGUAGE_MODEL = "openai:"  # before the name of a model behind an interface of OpenAI's form
MOST_ORDERS = 24
MOST_ROUNDS = 1000
DEFAULT_SMOOTHING = 0.1  # of labels without a confidence


def _share(value: Any) -> Any:
    """Return which of how many parts ``K/N`` names."""
    found = re.fullmatch("([0-9]{1,10})/([0-9]{1,10})", value) if isinstance(value, str) else None
    part = tuple(map(int, found.groups())) if found else value
    match part:
        case None:
            return None
        case (int(number), int(of)) if 1 <= number <= of <= MOST_PARTS:
            return number, of
    raise ValueError("is not K/N with K from 1 to N, such as 1/4 to 4/4")


def _engine(value: Any) -> Any:
    if value not in ("local", "ray") and not hasattr(value, "elsewhere"):
        raise ValueError("is not 'local' or 'ray'")
    return value


@group
class Asked:
    """What a language model is asked, and what that may cost."""

    labels: Columns = option(
        default=(), metavar="A,B,...", help="Of a language model: the labels, or a .txt file with one a line."
    )
    prompt: File | None = option(
        default=None, metavar="FILE", help="What it is told before the labels: what they mean, and for whom."
    )
    orders: int = option(
        default=1,
        ge=1,
        le=MOST_ORDERS,
        help="Ask each text in so many orders of the labels: soft labels, without a preference for places.",
    )
    base_url: str | None = option(
        default=None,
        metavar="URL",
        help="Server that speaks OpenAI's protocol: vLLM, Ollama, llama.cpp, ... Its key is $OPENAI_API_KEY. "
        "[env: OPENAI_BASE_URL]",
    )
    answer_tokens: int | None = option(
        default=None, ge=1, le=100_000, help="Tokens of an answer at most; more for models that think first."
    )
    concurrency: int = option(default=8, ge=1, le=256, decides=False, help="Questions that are under way at a time.")
    prices: File | None = option(
        default=None,
        metavar="FILE",
        decides=False,
        help='USD for a million tokens, in TOML: ["MODEL"] input = 0.25, cached_input = 0.025, output = 2.0.',
    )
    budget: Annotated[float | None, Holds("usd")] = option(
        default=None, gt=0, metavar="USD", decides=False, needs=("prices",), help="End before this costs more: 5USD."
    )
    dry_run: bool = option(default=False, decides=False, help="Say how many tokens it would take, and ask nothing.")

    def read_prompt(self) -> str:
        """Return the text of the prompt, which is empty where none is named."""
        prompt = read_text(Path(self.prompt)).strip() if self.prompt else ""
        refuse((self.prompt and not prompt, f"{self.prompt} is empty; write what the labels mean, or leave it out"))
        return prompt


# Options of one kind of teacher.
_OF_LANGUAGE_MODELS = ("answer", "validation", "min_score")
_OF_MODELS_HERE = ("max_length", "windows", "precision", "engine", "workers", "ray_address", "device", "threads")


@validated
class Label(Written[Any], Asked, LabelColumns, Placing):
    """Run the teacher once over unlabelled text and keep its logits. Resumable.

    The teacher is a model directory, or a language model behind an interface of OpenAI's form: openai:MODEL.
    """

    stage = "compress.labelling.label:label"

    teacher: AnyModel = option(
        help="The teacher: a directory, a hub name, or openai:MODEL with --labels.", metavar="DIR"
    )
    unlabeled: Text = option(
        help="Text to label: a file, a pattern, a folder of Parquet files or the URI of one; may be repeated.",
        metavar="FILE",
    )
    output: Output = option(
        help="Directory or URI to write; it must not exist.", metavar="DIR", decides=False, required=True
    )
    _: KW_ONLY
    answer: Literal["label", "labels", "spans", "score"] = option(
        default="label", help="Of a language model: one label a text, several, entities of these labels, or a score."
    )
    validation: Rows | None = option(
        default=None,
        metavar="FILE",
        decides=False,
        help="Labelled rows by which the language model is judged before anything else is asked.",
    )
    min_score: Percent = option(
        default=None,
        decides=False,
        needs=("validation",),
        metavar="SHARE",
        help="Ask nothing more unless its accuracy, or F1, is certainly as high: 85%.",
    )
    rows: int | None = option(default=None, ge=1, help="Use only so many rows, spread evenly over the text.")
    select: int | None = option(
        default=None,
        ge=1,
        metavar="N",
        help="Label N texts: random ones first, then in rounds those of which a fast model, taught by the labels so "
        "far, is least sure. Near copies are left out.",
    )
    rounds: int = option(
        default=8, ge=1, le=MOST_ROUNDS, needs=("select",), help="In which --select chooses; with 1 all are random."
    )
    seed: int | None = option(default=None, ge=0, needs=("select",), help="Of random texts, and of ties. Default: 0.")
    deduplicate: bool = option(default=False, help="Label only the first of near copies.")
    max_length: int | None = option(
        default=None, ge=LEAST_MAX_LENGTH, le=MOST_MAX_LENGTH, help="Cut texts to so many tokens."
    )
    windows: WindowsGiven | None = WINDOWS
    precision: Literal["float32", "bfloat16", "auto"] = option(
        default="float32",
        help="bfloat16 is faster on GPUs and some CPUs (AMX); logits differ in the third digit. auto compares both on "
        "512 rows and takes bfloat16 where it is faster and gives at least 99% of the same labels.",
    )
    shard: Annotated[Any, Holds("share"), pydantic.BeforeValidator(_share)] = option(
        default=None,
        metavar="K/N",
        help="Label only every N-th shard of 2,048 rows (of a language model 64), beginning with the K-th, such as "
        "3/8; 'compress labels merge' joins the N directories.",
    )
    engine: Annotated[Any, Holds("engine"), pydantic.BeforeValidator(_engine)] = option(
        default="local",
        decides=False,
        help="ray labels in several worker processes, each with --threads threads (default 1) or a GPU.",
    )
    workers: int | None = option(
        default=None,
        ge=1,
        decides=False,
        needs=("engine=ray",),
        help="Workers of Ray; default: as many as there is room for.",
    )
    ray_address: str | None = option(
        default=None,
        metavar="ADDRESS",
        decides=False,
        needs=("engine=ray",),
        help="Cluster of Ray that runs, auto on a node of it; default: started here.",
    )
    time_limit: Duration | None = option(
        default=None,
        gt=0,
        metavar="TIME",
        decides=False,
        help="Finish after this time, such as 30m or 2h, with the rows that are labelled then; the same command goes "
        "on with the rest. [default: none]",
    )

    @property
    def language_model(self) -> str:
        """The name of the language model that is the teacher; empty where that is a model directory."""
        teacher = str(self.teacher)
        return teacher.removeprefix(LANGUAGE_MODEL) if teacher.startswith(LANGUAGE_MODEL) else ""

    def faults(self) -> Iterator[str]:
        if str(self.teacher) == LANGUAGE_MODEL:
            yield f"--teacher {LANGUAGE_MODEL} names no model; give {LANGUAGE_MODEL}MODEL"
            return
        fits, others = "a model directory", [*_OF_MODELS_HERE]
        if not self.language_model:
            fits = f"{LANGUAGE_MODEL}MODEL"
            others = [*fields_of(Asked), *_OF_LANGUAGE_MODELS]
        for name, value in self.given(others).items():
            yield f"{flag_of(name, fields_of(self)[name], value)} needs {fits} as teacher; leave it out"
        if self.select:
            # Rounds wait for all labels of the last; near copies are left out anyway.
            for name, value in self.given(("shard", "engine", "deduplicate")).items():
                yield f"{flag_of(name, fields_of(self)[name], value)} does not go with --select; leave it out"

    def check_output(self) -> None:
        if self.dry_run or self.output is None or not is_uri(str(self.output)):
            return super().check_output()
        output = without_secrets(str(self.output))
        below = f"{output.rstrip('/')}/"
        for name in map(without_secrets, named_inputs(self)):
            lies = is_uri(name) and below.startswith(f"{name.rstrip('/')}/")
            holds = f"{name}/".startswith(below)
            if holds or lies:
                raise CompressError(
                    f"-o {output} {'holds' if holds else 'lies in'} {name}, which this command reads and would change; "
                    "choose another -o"
                )

    def open_made(self, path: Path) -> Any:
        return _open_labels(path, part=self.shard is not None)


@validated
class ImportLabels(Written[Any], LabelColumns):
    """Make a label directory from a table: annotators' votes, another model's probabilities, labels.

    Give one of --probabilities, --logits and --label-column. 'compress distill --labels DIR' then learns from it, with
    any teacher of the same classes.
    """

    stage = "compress.labelling.import_labels:import_labels"
    called = "labels import"
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(("label_map", "label_separator"), ("label_column",))

    files: Text = option(metavar="FILE...", argument=True, has_option=False, help="Tables, read one after the other.")
    output: Output = OUTPUT
    _: KW_ONLY
    probabilities: Columns = option(default=(), metavar="A,B,...", help="Columns of probabilities or counts.")
    logits: Columns = option(default=(), metavar="A,B,...", help="Columns of logits.")
    several_labels: bool = option(
        default=False,
        needs=("probabilities", "logits"),
        help="A text may have several labels or none: each column is of one label by itself.",
    )
    label_column: str | None = option(  # it decides here, as the text is fingerprinted without its labels
        default=None, metavar="NAME", help="Column of the label, or labels, of each text."
    )
    confidence: str | None = option(
        default=None, metavar="NAME", needs=("label_column",), help="Column of the label's probability, from 0 to 1."
    )
    # Szegedy et al. 2016, arXiv:1512.00567, section 7.
    smoothing: float | None = option(
        default=None,
        ge=0,
        lt=1,
        needs=("probabilities", "label_column"),
        help="Share of each row that knows nothing: spread evenly over all classes, or 0.5 of each of several labels. "
        "Default: 0.1 for labels without a confidence, otherwise 0.",
    )
    classes: Columns = option(
        default=(),
        metavar="A,B,...",
        help="The classes: names of the columns, in their order, or all labels. Default: the columns' own names, or "
        "the labels that occur, sorted.",
    )

    @property
    def values(self) -> str:
        """What the columns say: ``probabilities``, ``logits`` or ``labels``."""
        return "probabilities" if self.probabilities else "logits" if self.logits else "labels"

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns of the values: one a class, in their order, or that of the labels."""
        return (*self.probabilities, *self.logits, *([self.label_column] if self.label_column else []))

    @property
    def smoothed(self) -> float:
        plain = self.label_column and not self.confidence
        return self.smoothing if self.smoothing is not None else DEFAULT_SMOOTHING if plain else 0.0

    def faults(self) -> Iterator[str]:
        if sum(map(bool, (self.probabilities, self.logits, self.label_column))) != 1:
            yield "what do the columns say? Give one of --probabilities A,B,... --logits A,B,... --label-column NAME"
            return
        columns, named = self.value_columns, self.classes or (() if self.label_column else self.value_columns)
        if twice := [name for name in (*named, *columns) if max(named.count(name), columns.count(name)) > 1]:
            yield f"{twice[0]!r} is named twice; give each class and each column once"
        if not self.label_column and len(named) != len(columns):
            yield (
                f"--classes names {len(named)} classes, and there are {len(columns)} columns of {self.values}; name as "
                "many, in the order of the columns"
            )
        if len(named) == 1 or "" in named:
            yield "there must be two classes or more, each with a name: separate them by commas"

    def open_made(self, path: Path) -> Any:
        return _open_labels(path)


@validated
class MergeLabels(Written[Any]):
    """Join what 'compress label --shard 1/N' to 'N/N' wrote: the labels of one command that labelled the whole text."""

    stage = "compress.labelling.parts:merge_labels"
    called = "labels merge"

    parts: Labels = option(metavar="DIR...", argument=True, has_option=False, help="The directories of all parts.")
    output: Output = option(help="Directory to write; it must not exist.", metavar="DIR", decides=False)


@validated
class CloseLabels(Request[Any]):
    """Finish what a stopped 'compress label -o DIR' has labelled, as it is; the same command still goes on with it."""

    stage = "compress.labelling.parts:close_labels"
    called = "labels close"

    directory: Output = option(metavar="DIR", argument=True, has_option=False, help="The output of that command.")


def _open_labels(path: Path, **options: Any) -> Any:
    return importlib.import_module("compress.labelling.label_dir").LabelDir.open(path, **options)


close_labels = function(CloseLabels)
import_labels = function(ImportLabels)
label = function(Label)
merge_labels = function(MergeLabels)
