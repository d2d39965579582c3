"""The size of a head's weights: the L2 norm of its rows and columns. No data is read.

Han et al. 2015, "Learning both Weights and Connections for Efficient Neural Networks" (arXiv:1506.02626), for single
weights; here the norm of all weights that are removed with the head, as is usual in structured pruning.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.models.components import Part, units_of
from compress.pruning.scoring import Batches, LayerMasks, as_scores


@torch.no_grad()
def importance(
    model: PreTrainedModel, batches: Batches, masks: LayerMasks | None = None, *, part: Part = "heads"
) -> Tensor:
    norms = [
        (units.sum_over_rows(torch.square) + units.sum_over_columns(torch.square)).sqrt()
        for units in units_of(model, part)
    ]
    return as_scores(norms, masks)
