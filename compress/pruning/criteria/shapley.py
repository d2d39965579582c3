"""The Shapley value of a head, by Monte Carlo: what it adds to the heads that come before it in a random order.

Shapley 1953; Castro et al. 2009, "Polynomial calculation of the Shapley value based on sampling", whose estimate this
is; Held and Yannakoudakis 2022, "Shapley Head Pruning" (arXiv:2210.05709), for attention heads. Scores of all heads sum
to the value of the whole model minus that of one without any head. ``permutations`` x L x H evaluations: an expensive
reference for cheap criteria.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.models.components import fixed_weights
from compress.pruning.scoring import Batches, LayerMasks, Measure, Values, as_scores
from compress.surgery.unit_masks import unmasked


def importance(
    model: PreTrainedModel,
    batches: Batches,
    masks: LayerMasks | None = None,
    *,
    permutations: int = 8,
    measure: Measure = "loss",
    values: Values | None = None,
    seed: int = 0,
) -> Tensor:
    """Return raw scores ``[L, H]``, which can be negative.

    Args:
        permutations: random orders; every second one is the first backwards, which halves the variance or better.
        measure: the value of a model, as in the criterion ``oracle``, and ``values`` as there.

    Raises:
        CompressError: fewer than one permutation.
    """
    refuse((permutations < 1, f"permutations = {permutations} is not possible; give 1 or more"))
    kept, known, generator = list(batches), values or Values(), torch.Generator().manual_seed(seed)
    kept_heads = unmasked(model)["heads"] if masks is None else list(masks)
    places = [(layer, head) for layer, row in enumerate(kept_heads) for head in row.nonzero().flatten().tolist()]
    scores = [torch.zeros(len(row), dtype=torch.float64) for row in kept_heads]
    order: list[int] = []
    with fixed_weights(model):
        for number in range(permutations):
            order = order[::-1] if number % 2 else torch.randperm(len(places), generator=generator).tolist()
            present = [torch.zeros(len(row)) for row in kept_heads]
            before = known.of(model, {"heads": present}, kept, measure)
            for index in order:
                layer, head = places[index]
                present[layer][head] = 1.0
                after = known.of(model, {"heads": present}, kept, measure)
                scores[layer][head] += (after - before) / permutations
                before = after
    return as_scores(scores, masks)
