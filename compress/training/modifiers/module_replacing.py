"""Module replacing: in some steps a block of teacher layers replaces its student layer.

Xu et al. 2020, "BERT-of-Theseus: Compressing BERT by Progressive Module Replacing" (arXiv:2002.02925), section 3. In
every step each student layer (the successor) is used with probability ``r``, and otherwise the block of teacher layers
that it replaces (the predecessor), which is frozen. ``r`` stays at ``start`` (constant, equation 6) or rises from
there to 1 (linear, equation 7) over ``until`` of the phase: a share of its steps, where the authors' scripts give a
slope a step.
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from compress.data.examples import batched
from compress.errors import refuse
from compress.models.components import has_heads
from compress.models.modeling.families import layers_of

SCHEDULES = ("linear", "constant")


class ModuleReplacing:
    """The student's layers, each with the teacher's block that may replace it."""

    def __init__(
        self, student: PreTrainedModel, blocks: list[list[torch.nn.Module]], rate: Callable[[float], float]
    ) -> None:
        self.layers, self.rate, self.probability = list(layers_of(student)), rate, rate(0.0)
        for layer, block in zip(self.layers, blocks, strict=True):
            layer.forward = self._forward(layer, layer.forward, block)

    def _forward(self, layer: torch.nn.Module, own: Callable[..., Any], block: list[torch.nn.Module]) -> Any:
        def forward(hidden: torch.Tensor, *inputs: Any, **named: Any) -> Any:
            if not layer.training or torch.rand(()) < self.probability:
                return own(hidden, *inputs, **named)
            for predecessor in block:
                output = predecessor(hidden, *inputs, **named)
                hidden = output[0] if isinstance(output, tuple) else output
            return output  # as a layer of the family gives it, in a tuple or not

        return forward

    def step(self, done: float) -> None:
        self.probability = self.rate(done)

    def detach(self) -> None:
        for layer in self.layers:
            del layer.forward


def attach(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    *,
    schedule: str = "linear",
    start: float = 0.3,
    until: float = 0.5,
) -> ModuleReplacing:
    """Replace student layers by the teacher's at random.

    Args:
        schedule: ``linear`` or ``constant``.
        start: the probability that a student layer is used, at first or all the time.
        until: the share of the phase after which a rising probability has reached 1.

    Raises:
        CompressError: models of different width or family, or a depth that the student's does not divide.
    """
    theirs, ours = (model.config for model in (teacher, student))
    refuse(
        (
            schedule not in SCHEDULES,
            f"module-replacing: schedule = {schedule!r} is not known; use {' or '.join(SCHEDULES)}",
        ),
        (
            not 0 < start <= 1 or not 0 < until <= 1,
            f"module-replacing: start = {start} and until = {until} must be above 0 and at most 1",
        ),
        (
            not has_heads(student) or theirs.model_type != ours.model_type or theirs.hidden_size != ours.hidden_size,
            "module-replacing puts layers of the teacher into the student, so that both must be transformers of one "
            f"family and width; these are {ours.model_type} and {theirs.model_type}",
        ),
    )
    deep, shallow = len(layers_of(teacher)), len(layers_of(student))
    refuse(
        (
            deep < theirs.num_hidden_layers,
            "module-replacing needs layers of their own, and those of this teacher share their weights",
        ),
        (deep % shallow, f"module-replacing needs a depth that divides the teacher's {deep} layers, not {shallow}"),
    )
    blocks = list(batched(layers_of(teacher.requires_grad_(False).train(False)), deep // shallow))

    def rate(done: float) -> float:
        return start if schedule == "constant" else min(1.0, start + (1 - start) * done / until)

    return ModuleReplacing(student, blocks, rate)
