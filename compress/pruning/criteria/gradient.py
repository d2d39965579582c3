"""How much the loss of each example would change if a head were damped: ``I_h = mean over examples of |dL/dxi_h|``.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (arXiv:1905.10650), equation 3. A mask of its own for
every example makes one backward of the *summed* loss give each example's gradient, so that absolute values are taken
before the mean, as the equation says, and gradients do not accumulate over batches.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.models.components import Part, fixed_weights
from compress.pruning.scoring import Batches, Labels, LayerMasks, as_scores, loss_gradients
from compress.surgery.unit_masks import mask_hooks


def importance(
    model: PreTrainedModel,
    batches: Batches,
    masks: LayerMasks | None = None,
    *,
    part: Part = "heads",
    labels: Labels = "gold",
) -> Tensor:
    """Return raw scores ``[L, U]``.

    The loss is cross-entropy (squared error for regression); that of a sentence to tag is the sum over its words.

    Args:
        labels: ``gold``, or ``own``: the classes that the model predicts itself, which needs no labels.
    """
    # Only the masks need a gradient, which saves two thirds of the backward pass.
    with fixed_weights(model), mask_hooks(model, part) as hooks, torch.enable_grad():
        hooks.mask(masks)
        totals = [torch.zeros(units, dtype=torch.float64) for units in hooks.counts]
        rows = 0
        for count, gradients in loss_gradients(model, batches, hooks.per_example, labels):
            for total, gradient in zip(totals, gradients, strict=True):
                total += gradient.abs().sum(dim=0).double().cpu()
            rows += count
    return as_scores([total / rows for total in totals], masks)
