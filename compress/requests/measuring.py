"""What measuring, prediction, reports and gates are asked for."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
from pydantic_core import PydanticCustomError

from compress.fields import Holds, is_given, option, validated
from compress.recipes import BenchmarkSettings
from compress.requests import (
    FORCE,
    OUTPUT,
    AnyModel,
    Checks,
    File,
    Findings,
    LabelColumns,
    Models,
    Names,
    Output,
    Paths,
    QueryColumns,
    Recipe,
    Request,
    Rows,
    Seeded,
    Text,
    function,
)

ThreadCounts = Annotated[tuple[int, ...], Holds("thread-counts"), pydantic.Strict(False)]


@validated
class Benchmark(Request[Any], Checks, BenchmarkSettings, QueryColumns):
    """Measure models against their teacher, in one run.

    Speed, quality, size and memory, each with its interval. Every model and runtime is a process of its own,
    pinned to its cores; they take turns until speed-ups are precise or the time is over.
    """

    stage = "compress.benchmarking.benchmark:run_benchmark"
    NEEDS = {"overlap": ("train",), "metric": ()}

    teacher: AnyModel = option(help="The teacher, the reference of every comparison.", metavar="DIR")
    models: Models = option(help="A model; repeat for more.", metavar="DIR", flag="--model", required=True)
    data: Rows = option(help="Labelled rows that no model has seen.", metavar="FILE")
    output: Output = option(
        default=None, help="Results to write: JSON lines.", metavar="FILE", decides=False, required=True
    )
    _: KW_ONLY
    controls: Models = option(
        default=(), help="A control whose manifest does not name it as one.", metavar="DIR", flag="--control"
    )
    train: Text = option(
        default=None,
        metavar="FILE",
        help="Rows that models were trained on: check overlap with --data, and fit baselines on the labelled rows.",
    )
    device: Literal["auto", "cpu", "cuda"] = option(
        default="cpu", help="Where to compute; auto is cuda where there is one."
    )
    threads: ThreadCounts = option(
        default=(1,), metavar="N", help="CPU threads of each model; several as above; 0 is one a core."
    )
    seed: int = option(default=0, ge=0, help="Seed of everything random.")
    force: bool = FORCE

    def faults(self) -> Iterator[str]:
        yield from BenchmarkSettings.faults(self)

    def settings(self, threads: tuple[int, ...]) -> BenchmarkSettings:
        """Return the settings for numbers of threads, of which none is 0."""
        asked = {one.name: getattr(self, one.name) for one in fields(BenchmarkSettings)}
        return BenchmarkSettings(**{**asked, "threads": threads})


@validated
class Audit(Findings, LabelColumns, Seeded):
    """Check labelled rows before training: wrong labels, copies, and classes that look alike.

    Writes a page, audit.json, and lists of suspect labels and of copies. Each row is judged by what was fitted on
    others (confident learning).
    """

    stage = "compress.auditing.audit:audit"
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {"device": ("encoder",), "threads": ("encoder",)}

    train: Rows = option(help="Labelled rows to learn from.", metavar="FILE")
    output: Output = OUTPUT
    _: KW_ONLY
    validation: Rows = option(default=None, help="Labelled rows to choose by.", metavar="FILE")
    test: Rows = option(default=None, help="Labelled rows to report on.", metavar="FILE")
    unlabeled: Text = option(
        default=None,
        metavar="FILE",
        help="Text to label later: unlabeled.jsonl is it without rows that repeat, nearly or not, others of it or rows "
        "of --validation and --test.",
    )
    encoder: Recipe | None = option(
        default=None,
        metavar="DIR|RECIPE",
        help="A pretrained encoder whose embeddings judge labels in place of tf-idf, such as minilm-l6.",
    )

    def faults(self) -> Iterator[str]:
        if not is_given(self.train):
            yield "there are no rows to check; give labelled rows with --train FILE"


@validated
class Replay(Request[Any], QueryColumns):
    """Run a benchmark again from its lock and compare every figure.

    LOCK is the .lock.json beside a result file. Models are found by their hashes, and data must be the same rows.
    Exit code 0: the figures agree, 1: one differs, 3: undecided, on another host.
    """

    stage = "compress.benchmarking.replay:replay"

    lock: File = option(argument=True, has_option=False, metavar="LOCK", help="The .lock.json beside a result file.")
    data: Rows = option(metavar="FILE", help="The test rows that the lock names.")
    output: Output = option(
        default=None, metavar="FILE", decides=False, required=True, help="New results to write: JSON lines."
    )
    _: KW_ONLY
    train: Text = option(default=None, metavar="FILE", help="The training rows that the lock names, if it does.")
    roots: Paths = option(
        default=(),
        metavar="DIR",
        flag="--root",
        decides=False,
        help="Folder to search for models; default the lock's folder and the current directory.",
    )
    force: bool = FORCE


if TYPE_CHECKING:
    Results = Any
    Tests = Sequence[Any]
else:
    # One of them, such as what benchmark returns, is a list of it.
    _several = pydantic.BeforeValidator(lambda one: one if isinstance(one, list | tuple) else (one,))
    Results = Annotated[Paths, Holds("file"), _several]
    Tests = Annotated[tuple[Any, ...], Holds("rows"), pydantic.Strict(False)]


@validated
class Report(Request[Path], QueryColumns):
    """Write results as an HTML page, Markdown and JSON."""

    stage = "compress.reporting.report:report"

    results: Results = option(
        help="Files of 'compress benchmark'; hosts may differ, but are never compared.",
        metavar="RESULTS...",
        argument=True,
        has_option=False,
    )
    output: Output = option(help="Directory to write the pages to; no model.", metavar="DIR", required=True)
    _: KW_ONLY
    curves: Paths = option(
        default=(),
        metavar="FILE",
        flag="--curve",
        help="A model's directory, for the curves of its training and of its pruning; or one of these files.",
    )
    title: str = option(default="", metavar="TEXT", help="Heading; default the study's name.")
    max_accuracy_drop: float = option(
        default=1.0, ge=0, metavar="POINTS", help="Budget that verdicts are about, in points.", allow_inf_nan=False
    )
    prices: Names = option(
        default=(),
        metavar="MACHINE=AMOUNT",
        flag="--price",
        help="What an hour of a whole machine costs: cpu=0.34, cpu:8=0.34 (with 8 threads), cuda=2.5; may be repeated.",
    )
    currency: str = option(default="", metavar="TEXT", needs=("prices",), help="Currency written after amounts.")
    texts: Tests = option(
        default=(),
        metavar="FILE",
        help="The test data, to show the texts of flipped rows in the page; may be repeated.",
    )
    force: bool = FORCE


_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def size_in_bytes(text: str | int) -> int:
    """Return a size such as ``"30MB"``, ``"1.5 GiB"`` or ``30000000`` in bytes.

    Raises:
        ValueError: it is not a size above 0.
    """
    match = _SIZE.fullmatch(str(text).strip())
    unit = match and _UNITS.get(match[2].lower())
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 1:
        raise ValueError(f'{text!r} is not a size above 0, such as "30MB", "512 KiB" or a number of bytes')
    return size


_ABOVE_ZERO, _LARGEST = math.ulp(0.0), math.nextafter(math.inf, 0)
# The lowest and highest value a limit may have, and what it is.
_POINTS = (0, 100, "a number of percentage points from 0 to 100, such as 1.0")
_FRACTION = (-1, 1, "a metric as a fraction, such as 0.88 for 88%")
LIMITS: dict[str, tuple[float, float, str]] = {
    "max_accuracy_drop": _POINTS,
    "min_metric": _FRACTION,
    "max_drop_any_class": _POINTS,
    "min_recall": (0, 1, "a fraction from 0 to 1, such as 0.98"),
    "max_drop_any_slice": _POINTS,
    "min_metric_any_slice": _FRACTION,
    "max_calibration_error": (0, 1, "a fraction from 0 to 1, such as 0.05"),
    "max_truncated": (0, 1, "a fraction of the test rows from 0 to 1, such as 0.01"),
    "min_speedup": (_ABOVE_ZERO, _LARGEST, "a ratio above 0, such as 5 for five times as fast"),
    "min_model_speedup": (_ABOVE_ZERO, _LARGEST, "a ratio above 0, such as 5 for five times as fast"),
    "max_p95_ms": (_ABOVE_ZERO, _LARGEST, "a number of milliseconds above 0"),
    "max_size": (1, _LARGEST, "a size"),
    "max_memory": (1, _LARGEST, "a size"),
}
# On every class or slice, or on those that a table names.
OF_PARTS = ("max_drop_any_class", "min_recall", "max_drop_any_slice", "min_metric_any_slice")
OVER_SEEDS = ("max_accuracy_drop",)


def parse_limit(name: str, value: Any) -> Any:
    """Return a limit as a number, sizes in bytes; of :data:`OF_PARTS` perhaps a table of those on some parts.

    ``EMAIL=0.98`` is such a table too.

    Raises:
        ValueError: it is none that the limit may have.
    """
    if name in OF_PARTS and isinstance(value, str) and "=" in value:
        part, _, number = value.rpartition("=")
        value = {part: number}
    if isinstance(value, Mapping):
        if not value:
            raise ValueError("{} names nothing; give a number for all, or name some")
        return {part: _parse_number(name, number) for part, number in value.items()}
    return _parse_number(name, value)


def _parse_number(name: str, value: Any) -> float:
    low, high, allowed = LIMITS[name]
    if allowed == "a size":
        return size_in_bytes(value)
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if not low <= limit <= high:
        raise ValueError(f"{limit:g} is not {allowed}" if isinstance(value, float) else f"{value!r} is not {allowed}")
    return limit


def _limit(value: Any, about: pydantic.ValidationInfo) -> Any:
    try:
        return None if value is None else parse_limit(about.field_name or "", value)
    except ValueError as error:
        raise PydanticCustomError("value", "{said}", {"said": f"{about.field_name} = {error}"}) from None


Limit = Annotated[float | None, Holds("limit"), pydantic.AfterValidator(_limit)]
Size = Annotated[str | int | None, Holds("limit"), pydantic.AfterValidator(_limit)]
OfParts = Annotated[float | dict[str, float] | None, Holds("limit"), pydantic.AfterValidator(_limit)]


@validated
class BudgetLimits:
    """Limits on results; one that is None is not checked. ``REPLACED`` are the limits of earlier versions."""

    REPLACED: ClassVar[Mapping[str, str]] = {
        "min_speedup_with_tokenizer": " It is called min_speedup now, and what that was, of the models alone, "
        "min_model_speedup"
    }

    _: KW_ONLY
    max_accuracy_drop: Limit = option(default=None, metavar="POINTS", help="Points of the metric a model may lose.")
    over_seeds: bool = option(default=False, help="Judge --max-accuracy-drop by the mean over training seeds.")
    min_metric: Limit = option(default=None, metavar="SHARE", help="The metric itself, at least; 0.88 is 88%.")
    max_drop_any_class: OfParts = option(
        default=None, metavar="POINTS", help="Points of recall that any class may lose; or of one: NAME=POINTS."
    )
    min_recall: OfParts = option(
        default=None, metavar="SHARE", help="Recall of every class, at least; or of one: NAME=SHARE."
    )
    max_drop_any_slice: OfParts = option(
        default=None, metavar="POINTS", help="Points of the metric that any slice may lose; or one: NAME=POINTS."
    )
    min_metric_any_slice: OfParts = option(
        default=None, metavar="SHARE", help="The metric of every slice, at least; or of one: NAME=SHARE."
    )
    max_calibration_error: Limit = option(default=None, metavar="SHARE", help="Expected calibration error, at most.")
    max_truncated: Limit = option(
        default=None, metavar="SHARE", help="Test rows that are longer than what is read, at most; 0 for none."
    )
    min_speedup: Limit = option(
        default=None, metavar="X", help="Times as fast as the teacher in torch from text to label, at least."
    )
    min_model_speedup: Limit = option(default=None, metavar="X", help="The same of the models alone.")
    max_p95_ms: Limit = option(default=None, metavar="MS", help="95th percentile from text to label, at most.")
    max_size: Size = option(default=None, metavar="SIZE", help="Weights on disk, at most: bytes, or such as 30MB.")
    max_memory: Size = option(default=None, metavar="SIZE", help="Memory of the model above its libraries', at most.")

    def limits(self) -> dict[str, Any]:
        """Return the limits that are given, sizes in bytes; of classes and slices perhaps a table by their names."""
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}


@validated
class Check(Request[Any], BudgetLimits):
    """Judge results against budgets. Exit code 0: they hold, 1: one is broken, 3: an interval straddles a budget."""

    stage = "compress.gating.gate:gate"

    results: Results = option(
        help="Files of 'compress benchmark'.", metavar="RESULTS...", argument=True, has_option=False
    )
    budgets: File | None = option(
        default=None, metavar="FILE", help="Budgets in a TOML file; limits given as options come on top."
    )
    _: KW_ONLY
    models: Names = option(default=(), metavar="NAME", flag="--model", help="Judge only this one; may be repeated.")
    runtimes: Names = option(
        default=(), metavar="NAME", flag="--runtime", help="Judge only this runtime; may be repeated."
    )
    batch_size: int | None = option(default=None, ge=1, help="Of the speed; default the smallest measured.")
    baseline: File | None = option(
        default=None, metavar="PATH", help="Older results: a file, or a directory with a file for each host."
    )
    against: str | None = option(default=None, metavar="REF:PATH", help="Older results as they are at a git reference.")
    max_baseline_drop: float | None = option(
        default=None, ge=0, le=100, metavar="POINTS", help="Below the older results; default 1."
    )
    max_baseline_slowdown: float | None = option(
        default=None, ge=0, lt=1, metavar="SHARE", help="Of the older speed-up; default 0.1."
    )
    update_baseline: str | os.PathLike[str] | None = option(
        default=None,
        metavar="DIR",
        decides=False,
        help="If all budgets hold, make the results this host's baseline.",
    )
    junit: str | os.PathLike[str] | None = option(
        default=None, metavar="FILE", decides=False, help="Write the verdict as JUnit XML."
    )
    json_file: str | os.PathLike[str] | None = option(
        default=None, metavar="FILE", flag="--json", decides=False, help="Write the verdict as JSON."
    )

    def faults(self) -> Iterator[str]:
        limits, older = self.limits(), self.baseline or self.against
        if (self.models or self.runtimes or self.batch_size) and not limits and not older:
            yield (
                "--model, --runtime and --batch-size are for limits that are options too, such as --max-accuracy-drop; "
                "in a file of budgets they are keys of a [[budget]]"
            )
        if self.over_seeds and {*limits} != {*OVER_SEEDS}:
            yield (
                "--over-seeds is for --max-accuracy-drop alone: give that, and other limits in another command; in a "
                "file of budgets it is a key of a [[budget]]"
            )
        if not older and (self.max_baseline_drop is not None or self.max_baseline_slowdown is not None):
            yield "--max-baseline-drop and --max-baseline-slowdown need --baseline or --against"


audit = function(Audit)
benchmark = function(Benchmark)
replay = function(Replay)
report = function(Report)
check = function(Check)
