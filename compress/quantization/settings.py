"""How a model is quantized, and how much accuracy that may cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compress.errors import CompressError


@dataclass(frozen=True)
class Quantization:
    """Method and acceptance limits.

    Args:
        method: a name from ``compress list quantizers``; by default what the model was trained for.
        options: keyword arguments of the method.
        keep_fp32: number of encoder layers, the most sensitive ones, that stay in float32.
        max_accuracy_drop: in points of the metric (0.90 to 0.89 is one point).
        min_agreement: share of rows with the prediction of the fp32 model, between 0 and 1.
    """

    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_fp32: int = 0
    max_accuracy_drop: float = 1.0
    min_agreement: float = 0.95

    def check(self) -> None:
        """Refuse values out of range."""
        if self.max_accuracy_drop < 0:
            raise CompressError(f"--max-accuracy-drop {self.max_accuracy_drop} is below 0; give points such as 1.0")
        if not 0 <= self.min_agreement <= 1:
            raise CompressError(
                f"--min-agreement {self.min_agreement} is not a share; give one between 0 and 1, such as 0.95"
            )
        if self.keep_fp32 < 0:
            raise CompressError(f"--keep-fp32 {self.keep_fp32} is below 0; give a number of layers")
