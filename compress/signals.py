"""Where a loss gets the teacher's outputs from: cached logits, or the teacher itself, run live."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from compress import plugins
from compress.recipes import Choice
from compress.types import Batch, Outputs, TeacherSignal

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CachedTeacher:
    """The logits of a label directory. The teacher itself is not needed any more."""

    def __call__(self, batch: Batch, cached_logits: Tensor | None) -> Outputs:
        if cached_logits is None:
            raise ValueError("rows without cached logits reached a loss that needs them")
        return Outputs(cached_logits)


class LiveTeacher:
    """The teacher run on every batch, for losses that compare more than logits.

    Logits still come from the cache, so that a live and a cached run learn from the same numbers.
    """

    def __init__(self, teacher: PreTrainedModel) -> None:
        self.teacher = teacher.eval()

    @torch.no_grad()
    def __call__(self, batch: Batch, cached_logits: Tensor | None) -> Outputs:
        outputs = self.teacher(**batch.inputs(), output_hidden_states=True)
        return Outputs(outputs.logits if cached_logits is None else cached_logits, tuple(outputs.hidden_states))


def needs(losses: Iterable[Choice]) -> frozenset[str]:
    """Return what the losses read: ``logits``, ``hidden``, ``labels``."""
    wanted: frozenset[str] = frozenset()
    for choice in losses:
        wanted |= plugins.find("losses", choice.name).load().NEEDS
    return wanted


def signal_for(losses: Iterable[Choice], teacher: PreTrainedModel | None) -> TeacherSignal:
    """Return the cheapest signal that serves the losses."""
    if "hidden" in needs(losses):
        if teacher is None:
            raise ValueError("a loss compares hidden states, so the teacher is needed")
        return LiveTeacher(teacher)
    return CachedTeacher()
