"""First-order change of the loss without a head's weights: ``|sum w dL/dw|`` of its rows, and the same of its columns.

Molchanov et al. 2019, "Importance Estimation for Neural Network Pruning" (arXiv:1906.10771), equation 7, for groups of
weights, and Fan et al. 2021 for transformers. The gradient is that of the mean loss over all examples: unlike in
``gradient``, effects of opposite sign on different examples cancel out.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.models.components import Part, fixed_weights, units_of
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
    """Return raw scores ``[L, U]``; ``labels`` as in the criterion ``gradient``."""
    layers = units_of(model, part)
    weights = [
        parameter for units in layers for linear in (*units.rows, units.columns) for parameter in linear.parameters()
    ]
    sums = [torch.zeros_like(weight) for weight in weights]
    with fixed_weights(model, learning=True), mask_hooks(model, part) as hooks, torch.enable_grad():
        hooks.mask(masks)
        rows = 0
        for count, found in loss_gradients(model, batches, lambda _: weights, labels):
            for total, gradient in zip(sums, found, strict=True):
                total += gradient
            rows += count
    gradients = {id(weight): total / rows for weight, total in zip(weights, sums, strict=True)}

    def product(weight: Tensor) -> Tensor:
        return weight.detach() * gradients[id(weight)]

    scores = [units.sum_over_rows(product).abs() + units.sum_over_columns(product).abs() for units in layers]
    return as_scores(scores, masks)
