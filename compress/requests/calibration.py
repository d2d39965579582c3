"""What calibrations and cascades are asked for."""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY
from typing import ClassVar, Literal

from compress.models.cascade_dir import CascadeDir
from compress.models.model_dir import ModelDir
from compress.requests import OUTPUT, Model, Models, Output, Percent, Rows, function, option, request
from compress.requests.groups import Checks, LabelColumns, Placing, Written


@request
class Calibrate(Written[ModelDir], LabelColumns, Placing):
    """Make probabilities right, and find when to accept them.

    The temperature becomes part of the model, so that every client computes calibrated probabilities. With --accept-at,
    'compress predict' says of each prediction whether it is accepted. Writes a page with the reliability diagram.
    """

    stage = "compress.calibration.calibrate:calibrate"

    model: Model = option(help="A classifier: torch or ONNX, also int8.", metavar="DIR")
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

    def faults(self) -> Iterator[str]:
        if self.accept_at is not None and not 0 < self.accept_at < 1:
            yield f"--accept-at {self.accept_at:.6g} is not between 0% and 100%; give a share such as 95%"


@request
class Cascade(Written[CascadeDir], LabelColumns, Checks, Placing):
    """Join models: the fast answer what they are sure of, the accurate the rest.

    Chooses the thresholds of least mean latency that keep the accuracy of the last --model. 'compress predict' and
    'compress benchmark' take the result as they take a model.
    """

    stage = "compress.cascades.cascade:cascade"
    NEEDS: ClassVar[Mapping[str, tuple[str, ...]]] = {"overlap": ("test",)}

    models: Models = option(
        flag="--model",
        metavar="DIR",
        help="From fast to accurate, two or more: all ONNX, or all torch. Those that do not help are left out.",
    )
    output: Output = OUTPUT
    _: KW_ONLY
    validation: Rows = option(help="Labelled rows that choose the thresholds.", metavar="FILE")
    test: Rows = option(default=None, help="Labelled rows that check the cascade once.", metavar="FILE")
    max_accuracy_drop: float = option(
        default=1.0,
        ge=0,
        help="Points of the metric that the cascade may lose against the last model, by the 95% interval on "
        "--validation.",
    )


calibrate = function(Calibrate)
cascade = function(Cascade)
