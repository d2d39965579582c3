"""Train with weights of 2 to 8 bits: each group of output neurons has its own range, sensitive layers get more bits.

Shen et al. 2020, "Q-BERT: Hessian Based Ultra Low Precision Quantization of BERT", arXiv:1909.05840. In the first
batches of the phase nothing is rounded: on them the sensitivity of each encoder layer is measured
(:mod:`compress.quantization.hessian_sensitivity`) with the teacher's answers, and the layers get their bits by it.
Embeddings, and linear layers outside the encoder, have ``embedding_bits``; the last layer, which gives the logits,
stays in floating point.
Afterwards the model has its floating-point weights, and its config the bits, which the quantizer ``packed`` reads.
"""

from typing import Any, cast

import torch
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.inference import processes
from compress.models.components import has_heads, input_embeddings
from compress.models.integer_rounding import ACTIVATION_RANGES, WEIGHT_BITS, WEIGHT_GROUPS, forget_quantization, grid_of
from compress.models.modeling.families import layers_of
from compress.quantization.fake_layers import FakeLayers, Rounding, check_shares, quantized_modules
from compress.quantization.hessian_sensitivity import (
    PART_ROWS,
    PARTS,
    SensitivityBatch,
    answers_of,
    assign_bits,
    layer_sensitivities,
)

LAYER_BITS = "layer_bits"  # a buffer, so that a checkpoint holds what was decided; 0 is undecided


class GroupwiseQuantization(FakeLayers):
    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        bits: list[int],
        groups: int,
        embedding_bits: int,
        activation_bits: int,
        decay: float,
    ) -> None:
        self._student, self._teacher, self._layer_bits, self._groups = student, teacher, bits, groups
        modules = quantized_modules(student)
        *_, last = (name for name, module in modules.items() if isinstance(module, torch.nn.Linear))
        del modules[last]
        layer_of = {inner: index for index, layer in enumerate(layers_of(student)) for inner in layer.modules()}
        self._layer = {name: layer_of.get(module) for name, module in modules.items()}
        self._embedding_bits = embedding_bits
        self._parts: list[SensitivityBatch] = []
        known = (bits if len(bits) == 1 else [0]) * len(layers_of(student))
        student.register_buffer(LAYER_BITS, torch.tensor(known, device=student.device))
        super().__init__(modules, self._rounded, activation_bits=activation_bits, decay=decay)
        self._hook = student.register_forward_pre_hook(self._before, with_kwargs=True)

    @property
    def layer_bits(self) -> list[int]:
        """Bits of each encoder layer; zeros until they are decided."""
        return cast(list[int], self._student.get_buffer(LAYER_BITS).tolist())  # a GPU is waited for once, not by layer

    def step(self, done: float) -> None:
        if not self.active and len(self._parts) >= PARTS and not any(self.layer_bits):
            self._decide()

    def gather(self) -> None:
        """Each process measures on its own batches; the bits are those of process 0."""
        super().gather()
        processes.from_main(self._student.get_buffer(LAYER_BITS))

    def detach(self) -> None:
        """Remove rounding and buffers; write bits, groups and ranges of activations to the student's config."""
        if self._parts and not any(self.layer_bits):
            self._decide()  # the training was shorter than what is measured on
        decided, ranges = self._present_bits(), self.ranges()
        super().detach()
        self._hook.remove()
        delattr(self._student, LAYER_BITS)
        if all(decided.values()):
            for key, value in ((WEIGHT_BITS, decided), (WEIGHT_GROUPS, self._groups), (ACTIVATION_RANGES, ranges)):
                if value:
                    setattr(self._student.config, key, value)

    def _present_bits(self) -> dict[str, int]:
        by_layer = self.layer_bits
        return {name: self._embedding_bits if layer is None else by_layer[layer] for name, layer in self._layer.items()}

    def _decide(self) -> None:
        self.active = False
        self._teacher.to(self._student.device)  # type: ignore[arg-type]
        bits = assign_bits(layer_sensitivities(self._student, self._parts), self._layer_bits)
        self._student.get_buffer(LAYER_BITS).copy_(torch.tensor(bits))
        self._parts.clear()

    def _before(self, student: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Round as soon as the bits are known, and until then keep training batches to measure on."""
        if not student.training and self._parts and not any(self.layer_bits):
            self._decide()  # weights are selected by what they are worth when rounded
        self._weight_bits = self._present_bits()
        self.active = all(self._weight_bits.values())
        if student.training and not self.active and len(self._parts) < PARTS:
            kept = {key: value[:PART_ROWS] for key, value in named.items() if isinstance(value, torch.Tensor)}
            self._parts.append((kept, answers_of(self._teacher.to(self._student.device), kept)))  # type: ignore[arg-type]

    def _rounded(self, name: str, weight: torch.Tensor) -> Rounding:
        return grid_of(weight, self._weight_bits[name], self._groups).fake


def attach(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    *,
    bits: list[int],
    groups: int = 128,
    embedding_bits: int = 8,
    activation_bits: int = 8,
    decay: float = 0.9999,
) -> GroupwiseQuantization:
    """Let a student compute with weights of few bits.

    Args:
        bits: of encoder layers; one number for all, or several, of which the largest goes to the most sensitive.
        groups: how many groups of consecutive output neurons a matrix has at most, each with a range of its own.
        embedding_bits: of embeddings and of linear layers outside the encoder.
        activation_bits: of the inputs of linear layers, whose ranges are moving averages; 0 leaves them.
        decay: of these moving averages.

    Raises:
        CompressError: a student without transformer layers or, for several bits, of another vocabulary than its
            teacher's; an option out of its range.
    """
    refuse(
        (
            not has_heads(student),
            f"groupwise-quantization is for transformers, and the student is a {student.config.model_type!r}; use a "
            "transformer architecture",
        ),
        (
            len(bits) > 1 and input_embeddings(student).num_embeddings != input_embeddings(teacher).num_embeddings,
            "groupwise-quantization with several bits measures with the teacher's answers, and with [vocabulary] the "
            "teacher reads other tokens; give one number of bits",
        ),
        (not bits or groups < 1, f"bits = {bits} needs a number and groups = {groups} must be at least 1"),
    )
    named = {**{f"bits[{index}]": value for index, value in enumerate(bits)}, "embedding_bits": embedding_bits}
    check_shares(bits=named | ({"activation_bits": activation_bits} if activation_bits else {}), decay=decay, start=0.0)
    forget_quantization(student.config)
    return GroupwiseQuantization(student, teacher, list(bits), groups, embedding_bits, activation_bits, decay)
