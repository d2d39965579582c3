"""Quantization-aware training for int8: weights and activations are rounded while training.

Zafrir et al. 2019, "Q8BERT: Quantized 8Bit BERT", arXiv:1910.06188. Weights of linear layers and embeddings are
rounded to symmetric 8-bit numbers by their present largest magnitude, inputs of linear layers by a moving average of
theirs. Softmax, layer norm, GELU and the products inside attention stay in floating point. Gradients pass the rounding
unchanged. Afterwards the model has its floating-point weights, and its config names the ranges, which the quantizer
``onnx-qdq`` reads.
"""

from torch import Tensor
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.models.components import has_heads
from compress.models.integer_rounding import ACTIVATION_RANGES, fake_symmetric, forget_quantization
from compress.quantization.fake_layers import FakeLayers, Rounding, check_shares, quantized_modules

BITS = 8  # of weights and activations, as the quantizer has them


class FakeQuantization(FakeLayers):
    """Rounds the layers of a student from the share ``start`` of the phase on, and in every evaluation."""

    def __init__(self, student: PreTrainedModel, *, decay: float, start: float) -> None:
        super().__init__(quantized_modules(student), _rounding, activation_bits=BITS, decay=decay)
        self._student, self._start = student, start
        self.active, self.evaluates_rounded = start == 0, True

    def step(self, done: float) -> None:
        self.active = done >= self._start

    def detach(self) -> None:
        """Remove rounding and buffers; write the ranges to ``student.config.activation_ranges``."""
        if ranges := self.ranges():
            setattr(self._student.config, ACTIVATION_RANGES, ranges)
        super().detach()


def _rounding(_: str, weight: Tensor) -> Rounding:
    largest = weight.detach().abs().amax()
    return lambda rows, numbers: fake_symmetric(rows, largest, BITS)


def attach(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    *,
    decay: float = 0.9999,
    start: float = 0.0,
) -> FakeQuantization:
    """Attach fake quantization to a student.

    Args:
        decay: of the moving average of activation ranges. It starts at the first batch, which the paper's .9999 hardly
            leaves within a few hundred steps.
        start: share of the phase that passes before training rounds; ranges are observed from its first batch, and
            evaluations round from the first one on.

    Raises:
        CompressError: a student without transformer layers, or an option out of its range.
    """
    refuse(
        (
            not has_heads(student),
            f"fake-quantization is for transformers, and the student is a {student.config.model_type!r}; use --method "
            "onnx-dynamic after training instead",
        )
    )
    check_shares(bits={}, decay=decay, start=start)
    forget_quantization(student.config)
    return FakeQuantization(student, decay=decay, start=start)
