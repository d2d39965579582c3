"""Random scores: the baseline that every other criterion must beat."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.models.components import Part, units_of
from compress.pruning.scoring import Batches, LayerMasks, as_scores


def importance(
    model: PreTrainedModel,
    batches: Batches,
    masks: LayerMasks | None = None,
    *,
    part: Part = "heads",
    seed: int = 0,
) -> Tensor:
    """Return uniform scores ``[L, U]``; the same seed gives the same scores whatever the batches are."""
    generator = torch.Generator().manual_seed(seed)
    return as_scores([torch.rand(units.count, generator=generator) for units in units_of(model, part)], masks)
