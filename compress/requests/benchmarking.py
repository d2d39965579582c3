"""What measuring and prediction are asked for."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

from compress.fields import Holds, is_given, option, validated
from compress.recipes import BenchmarkSettings
from compress.requests import (
    FORCE,
    AnyModel,
    Checks,
    File,
    LabelColumns,
    Models,
    Output,
    Paths,
    Placing,
    Request,
    Rows,
    Text,
    TextColumns,
    function,
)

ThreadCounts = Annotated[tuple[int, ...], Holds("thread-counts"), pydantic.Strict(False)]
if TYPE_CHECKING:
    Lines = Any
else:
    Lines = Annotated[Any, Holds("lines")]


@validated
class Benchmark(Request[Any], Checks, BenchmarkSettings, LabelColumns):
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
class Replay(Request[Any], LabelColumns):
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


@validated
class Predict(Request[Iterator[dict[str, Any]]], TextColumns, Placing):
    """Classify texts, one JSON line each; - reads them from standard input, one a line.

    A line holds the label and its probability, or the score of a regression. Of a model that was calibrated with
    --accept-at it also says whether the prediction is accepted. A tagger of words reads a text as words
    with spaces between them, and a line holds the words, their tags and probabilities. A text that is longer than the
    model reads is answered by a part of it, and its line says so: "truncated": true. There is a line for every row, in
    order: an empty text is a text.
    """

    stage = "compress.inference.predict:predict"

    model: AnyModel = option(help="Any model directory, torch or ONNX.", metavar="DIR")
    texts: Lines = option(default=(), metavar="[TEXT]... | -", argument=True, has_option=False, help="Texts.")
    _: KW_ONLY
    data: Rows = option(default=None, metavar="FILE", help="Texts to classify, instead of TEXT.")
    probabilities: bool = option(default=False, help="Print the probabilities of all labels of a classifier.")

    def faults(self) -> Iterator[str]:
        if is_given(self.data) == is_given(self.texts):
            yield "predict needs either TEXT arguments or --data FILE"
        texts = self.texts if isinstance(self.texts, tuple) else ()
        if broken := [one for one in texts if isinstance(one, str) and one != one.encode(errors="ignore").decode()]:
            yield f"the text {broken[0]!r} is not UTF-8; convert it, or give it in a file with --data"


benchmark = function(Benchmark)
replay = function(Replay)
predict = function(Predict)
