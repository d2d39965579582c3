"""Random scores: the baseline that every other criterion must beat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from compress.attention import heads_per_layer
from compress.types import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def importance(
    model: PreTrainedModel, batches: Iterable[Batch], masks: Sequence[Tensor] | None = None, *, seed: int = 0
) -> Tensor:
    """Return uniform scores ``[L, H]``; the same seed gives the same scores whatever the batches are."""
    heads = heads_per_layer(model)
    scores = torch.rand(len(heads), max(heads), generator=torch.Generator().manual_seed(seed))
    for layer, count in enumerate(heads):
        scores[layer, count:] = 0
        if masks is not None:
            scores[layer, :count] *= torch.as_tensor(masks[layer])
    return scores
