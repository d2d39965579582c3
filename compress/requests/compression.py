"""What pruning, quantization, export, calibration and cascades are asked for."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY
from typing import ClassVar, Literal, NamedTuple

from compress.fields import fields_of, flag_of, is_given, option, validated
from compress.models.model_dir import CascadeDir, Model
from compress.recipes import Pruning, Training
from compress.requests import (
    OUTPUT,
    WINDOWS,
    AnyModel,
    Assignments,
    Checks,
    Findings,
    Labels,
    Models,
    Names,
    Numbers,
    Output,
    Percent,
    Placing,
    QueryColumns,
    Rows,
    Seeded,
    Text,
    Trained,
    WindowsGiven,
    Written,
    function,
)
from compress.requests.labelling import LANGUAGE_MODEL, Asked


@validated
class Prune(Pruning, Written[Model], QueryColumns, Checks, Trained):
    """Remove layers, heads, neurons, hidden width and vocabulary, then recover accuracy.

    Amounts are what is removed. A report in the new directory lists speed-up and accuracy after each removal, with the
    metric after every step as a table and a chart.
    """

    stage = "compress.pruning.prune:prune"
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {"overlap": ("validation",), "metric": ()}

    model: AnyModel = option(help="The model to prune.", metavar="DIR")
    output: Output = OUTPUT
    _: KW_ONLY
    train: Rows = option(help="Labelled rows for scoring and for recovery.", metavar="FILE")
    validation: Rows = option(
        default=None, help="Labelled rows to evaluate each step and select the checkpoint.", metavar="FILE"
    )
    vocabulary: Text = option(
        default=None, help="Keep only the subword tokens of this text; may be repeated.", metavar="FILE"
    )
    labels: Labels = option(
        default=(), needs=("recover",), metavar="DIR", help="Text for --recover, from 'compress label'."
    )
    training: Training | None = option(default=None, has_option=False, help="Hyperparameters of the recovery.")
    measure: bool = option(default=True, help="Time each removal, on one thread or --threads.")

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.max_accuracy_drop and not is_given(self.validation):
            yield (
                "--max-accuracy-drop is judged on rows that the model was not fitted on; give them with "
                "--validation FILE"
            )
        if self.recover and not is_given(self.validation) and not self.labels:
            yield "--recover needs rows to select the checkpoint by; give --validation FILE, or --labels DIR"


@validated
class HeadStudy(Findings, QueryColumns, Checks, Seeded):
    """Study the importance of a model's attention heads, without changing it.

    Writes heads.json, tables, and a report: importance by criterion, the metric with one head removed, with one head
    kept in a layer, and with more and more heads removed.
    """

    stage = "compress.pruning.head_study:head_study"
    called = "heads"

    model: AnyModel = option(help="The model whose heads are studied.", metavar="DIR")
    output: Output = OUTPUT
    _: KW_ONLY
    train: Rows = option(help="Labelled rows that score the heads.", metavar="FILE")
    validation: Rows = option(help="Labelled rows on which their removal is measured.", metavar="FILE")
    criteria: Names = option(
        default=(),
        flag="--criterion",
        metavar="NAME",
        help="An importance criterion; may be repeated; see 'compress list criteria'. [default: all but shapley]",
    )
    examples: int = option(default=1024, ge=1, help="Rows of --train that score the heads.")
    step: float = option(default=0.1, gt=0, le=1, help="Share of heads between two points.")
    normalise: bool = option(default=True, help="Divide scores by the norm of their layer.")

    def faults(self) -> Iterator[str]:
        if not is_given(self.validation):
            yield "there are no rows to measure on; give labelled rows with --validation FILE"


@validated
class Quantize(Written[Model], QueryColumns, Checks, Placing):
    """Quantize weights to int8, accepted only if accurate and faster.

    A model that fails the check on --validation becomes fp32 ONNX, with the reason in its manifest.
    """

    stage = "compress.quantization.quantize:quantize"
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {"overlap": ("validation",)}

    model: AnyModel = option(help="The model to quantize: torch, or fp32 ONNX.", metavar="DIR")
    output: Output = OUTPUT
    _: KW_ONLY
    method: str | None = option(
        default=None,
        metavar="NAME",
        help="See 'compress list quantizers'; 'auto' tries several on --validation and keeps the fastest that passes. "
        "Default: the method that the model was trained for, or onnx-dynamic.",
    )
    options: Assignments = option(
        default={},
        flag="--option",
        metavar="NAME=VALUE",
        help="An option of the method, such as embeddings=float16; may be repeated.",
    )
    keep_fp32: int = option(
        default=0,
        ge=0,
        metavar="N",
        help="Leave the N encoder layers that are most sensitive, measured on --train, in fp32.",
    )
    max_accuracy_drop: float = option(
        default=1.0,
        ge=0,
        needs=("validation",),
        help="Points of the metric that int8 may lose before fp32 is kept.",
    )
    min_agreement: float = option(
        default=0.95,
        ge=0,
        le=1,
        has_option=False,
        help="Share of rows with the prediction of the fp32 model, at least.",
    )
    batch_sizes: Numbers = option(
        default=(1, 32),
        metavar="N",
        flag="--batch-size",
        needs=("validation",),
        help="Sizes that int8 is timed at on --validation: on average over them it has to be faster than fp32. "
        "Repeated, or separated by commas.",
    )
    train: Rows = option(
        default=None,
        metavar="FILE",
        help="Labelled rows to measure sensitivities or ranges of activations on, or to count tokens in.",
    )
    validation: Rows = option(
        default=None, metavar="FILE", help="Labelled rows to check int8 on; without them it is unchecked."
    )

    def faults(self) -> Iterator[str]:
        if self.device == "cuda":
            yield "--device cuda does not fit: what is quantized is for CPUs; use --device cpu"
        if min(self.batch_sizes, default=0) < 1:
            yield f"--batch-size {[*self.batch_sizes]} does not fit; give sizes from 1 on, such as 1,32"


@validated
class Export(Written[Model]):
    """Write a fused fp32 ONNX directory that other ONNX clients open, or a small student for C or JavaScript.

    A student that the native library runs may be torch or ONNX, also int8. Its directory then has tokenizer and weights
    in one file, model.native, and compress.load opens it.
    """

    stage = "compress.exporting.export:export"

    model: AnyModel = option(help="The model to export: torch, for other formats ONNX too.", metavar="DIR")
    output: Output = OUTPUT
    _: KW_ONLY
    format: Literal["onnx", "native", "c", "wasm"] = option(
        default="onnx",
        help="native: model.native alone; c: with the C sources of the library and an example; wasm: with a module "
        "for JavaScript and a page.",
    )
    windows: WindowsGiven | None = WINDOWS


class Decision(NamedTuple):
    """When a class is given: ``by`` its probability, F1, or where its recall or precision is ``least``."""

    by: str
    least: float
    label: str


_DECISION = re.compile(r"(f1|recall(?==)|precision(?==))(?:(?<!f1)=([0-9]{0,6}\.?[0-9]{1,6})(%?))?:(.+)", re.DOTALL)


@validated
class Calibrate(Written[Model], QueryColumns, Placing):
    """Make probabilities right, and find when to accept them.

    The temperature becomes part of the model, so that every client computes calibrated probabilities. With --accept-at,
    'compress predict' says of each prediction whether it is accepted. Writes a page with the reliability diagram.
    """

    stage = "compress.calibration.calibrate:calibrate"

    model: AnyModel = option(help="A classifier: torch or ONNX, also int8.", metavar="DIR")
    output: Output = OUTPUT
    _: KW_ONLY
    validation: Rows = option(help="Labelled rows to calibrate on, which it was not trained on.", metavar="FILE")
    accept_at: Percent = option(
        default=None,
        metavar="SHARE",
        help="Find the confidence from which predictions are right so often, such as 95%, with 95% certainty.",
    )
    accept_by: Literal["overall", "class"] = option(
        default="overall",
        needs=("accept_at",),
        help="One threshold for all predictions, or one for each class, that holds for this class.",
    )
    decide_by: str = option(
        default="probability",
        metavar="WAY",
        help="When a class is given: by its probability; f1:CLASS from where its F1 is highest; recall=98%:CLASS or "
        "precision=95%:CLASS where that is certain, with the most of the other. Of several labels a text, f1 is of "
        "each. A probability of 0.5 is moved there.",
    )

    @property
    def decision(self) -> Decision:
        found = _DECISION.fullmatch(self.decide_by)
        by, share, percent, label = found.groups() if found else ("", None, None, None)
        return Decision(by or self.decide_by, float(share or 0) / (100 if percent else 1), label or "")

    def faults(self) -> Iterator[str]:
        if self.accept_at is not None and not 0 < self.accept_at < 1:
            yield f"--accept-at {self.accept_at:.6g} is not between 0% and 100%; give a share such as 95%"
        known, least = _DECISION.fullmatch(self.decide_by), self.decision.least
        if self.decide_by not in {"probability", "f1"} and not (known and (known[2] is None or 0 < least < 1)):
            ways = "probability, f1, f1:CLASS, recall=98%:CLASS or precision=95%:CLASS"
            yield f"--decide-by {self.decide_by!r:.60} is none of {ways}"


@validated
class Cascade(Written[CascadeDir], Asked, QueryColumns, Checks, Placing):
    """Join models: the fast answer what they are sure of, the accurate the rest.

    Chooses the thresholds of least mean latency that keep the accuracy of the last --model, or with --agree its
    answers. 'compress predict' and 'compress benchmark' take the result as they take a model.
    """

    stage = "compress.cascades.cascade:cascade"
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {"overlap": ("test",)}

    models: Models = option(
        flag="--model",
        metavar="DIR",
        help="From fast to accurate, two or more: all ONNX, or all torch. Those that do not help are left out. The "
        "last may be a language model, openai:MODEL; --labels are by default those of the others.",
    )
    output: Output = OUTPUT
    _: KW_ONLY
    validation: Rows = option(
        help="Labelled rows that choose the thresholds; for --agree texts are enough.", metavar="FILE"
    )
    test: Rows = option(default=None, help="Rows of this kind that check the cascade once.", metavar="FILE")
    max_accuracy_drop: float = option(
        default=1.0,
        ge=0,
        help="Points of the metric that the cascade may lose against the last model, by the 95% interval on "
        "--validation.",
    )
    agree: Percent = option(
        default=None,
        metavar="SHARE",
        help="Instead of that: one model answers before the last, and what it answers is what the last would, at least "
        "so often, such as 98%, with 95% certainty on texts like --validation.",
    )

    @property
    def language_model(self) -> str:
        """The name of the language model that is the last model; empty where that is a directory."""
        last = str(self.models[-1]) if self.models else ""
        return last.removeprefix(LANGUAGE_MODEL) if last.startswith(LANGUAGE_MODEL) else ""

    def faults(self) -> Iterator[str]:
        if any(str(one).startswith(LANGUAGE_MODEL) for one in self.models[:-1]):
            yield "a language model answers what others leave; give it once, as the last --model"
        for name, value in {} if self.language_model else self.given(fields_of(Asked)).items():
            yield f"{flag_of(name, fields_of(self)[name], value)} needs openai:MODEL as the last --model; leave it out"
        if self.agree is not None:
            if not 0.5 <= self.agree < 1:
                yield f"agree = {self.agree} must be a share from 0.5 to below 1, such as 98%"
            for name in ("max_accuracy_drop", "metric"):
                if getattr(self, name) != getattr(Cascade, name):
                    yield f"{name} has no effect with agree; give one of them"


calibrate = function(Calibrate)
cascade = function(Cascade)
export = function(Export)
head_study = function(HeadStudy)
prune = function(Prune)
quantize = function(Quantize)
