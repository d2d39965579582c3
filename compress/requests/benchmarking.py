"""What measuring and prediction are asked for."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

from compress.fields import Holds, is_given, option, validated
from compress.recipes import BenchmarkSettings
from compress.requests import File, Model, Models, Names, Numbers, Output, Paths, Request, Rows, Seconds, Text, function
from compress.requests.groups import FORCE, Checks, LabelColumns, Placing, TextColumns

ThreadCounts = Annotated[tuple[int, ...], Holds("thread-counts"), pydantic.Strict(False)]
if TYPE_CHECKING:
    Lines = Any
else:
    Lines = Annotated[Any, Holds("lines")]


@validated
class Benchmark(Request[Any], LabelColumns, Checks):
    """Measure models against their teacher, in one run.

    Speed, quality, size and memory, each with its interval. Every model and runtime is a process of its own,
    pinned to its cores; they take turns until speed-ups are precise or the time is over.
    """

    stage = "compress.benchmarking.benchmark:run_benchmark"
    NEEDS = {"overlap": ("train",), "metric": ()}

    teacher: Model = option(help="The teacher, the reference of every comparison.", metavar="DIR")
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
    baselines: bool | Names = option(
        default=True,
        flags={"--no-baselines": (False, "Do not measure baselines, cheap classifiers fitted on gold labels only.")},
        help="Whether to measure baselines, cheap classifiers fitted on gold labels only, or which.",
    )
    competitors: Names = option(
        default=(),
        metavar="NAME",
        flag="--competitor",
        help="Run the torch models in another tool too: see 'compress list competitors'; 'all' runs every one; "
        "repeatable.",
    )
    competitor_models: Names = option(
        default=(),
        metavar="NAME",
        flag="--competitor-model",
        needs=("competitors",),
        help="A model for competitors; default all.",
    )
    reference_models: Names = option(
        default=(),
        metavar="NAME",
        flag="--reference-model",
        help="For scale, measure the speed of bert-base, bert-large, distilbert, albert-base or albert-xxlarge with "
        "random weights; may be repeated.",
    )
    pruning_steps: bool = option(
        default=False, help="Measure each removal of pruned torch models, for the report's waterfall."
    )
    runtimes: Names = option(
        default=(), metavar="NAME", flag="--runtime", help="See 'compress list runtimes'; may be repeated."
    )
    batch_sizes: Numbers = option(
        default=(1, 32),
        metavar="N",
        flag="--batch-size",
        help="1 measures latency, larger ones throughput; repeated, or separated by commas.",
    )
    lengths: Numbers = option(
        default=(),
        metavar="N",
        flag="--length",
        help="Measure rows of exactly so many tokens too, beside the data's own lengths; several as above.",
    )
    max_length: int | None = option(
        default=None,
        ge=0,
        metavar="N",
        help="Tokens a text is cut to for models and competitors; baselines read more. Default: as many as each can "
        "read.",
    )
    padded_teacher: bool = option(
        default=True,
        help="Measure the teacher in torch also with all rows padded to --max-length, or 128 tokens.",
    )
    half_width: float = option(
        default=0.05,
        ge=0.025,
        le=1,
        metavar="SHARE",
        help="Measure until the 95% interval of every model's speed-up is within this share of it, and that of "
        "baselines and controls within twice as much.",
    )
    time_limit: Seconds = option(
        default=120.0,
        ge=1,
        le=86_400,
        metavar="TIME",
        help="Begin no further round after this time, such as 90s or 10m, if three are done; a number is seconds.",
    )
    rounds: int = option(default=100, ge=3, le=10_000, help="Most rounds.")
    device: Literal["auto", "cpu", "cuda"] = option(
        default="cpu", help="Where to compute; auto is cuda where there is one."
    )
    threads: ThreadCounts = option(
        default=(1,), metavar="N", help="CPU threads of each model; several as above; 0 is one a core."
    )
    seed: int = option(default=0, ge=0, help="Seed of everything random.")
    together: int = option(
        default=0, ge=0, has_option=False, help="How many models to hold in memory at a time; 0 for all."
    )
    force: bool = FORCE

    def settings(self, threads: tuple[int, ...]) -> BenchmarkSettings:
        """Return the settings for numbers of threads, of which none is 0."""
        asked = {one.name: getattr(self, one.name) for one in fields(BenchmarkSettings)} | {"threads": threads}
        return BenchmarkSettings(**{name: value for name, value in asked.items() if value is not None})


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

    model: Model = option(help="Any model directory, torch or ONNX.", metavar="DIR")
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
