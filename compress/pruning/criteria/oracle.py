"""What the model loses without one head: its value with all heads minus its value without this one.

Michel et al. 2019 (arXiv:1905.10650), section 3.2. L x H evaluations of all examples; a harmful head has a negative
score. Heads that can replace each other all score low, which ``shapley`` corrects at a higher cost.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.models.components import fixed_weights
from compress.pruning.scoring import Batches, LayerMasks, Measure, Values, as_scores
from compress.surgery.unit_masks import unmasked


def importance(
    model: PreTrainedModel,
    batches: Batches,
    masks: LayerMasks | None = None,
    *,
    measure: Measure = "metric",
    values: Values | None = None,
) -> Tensor:
    """Return raw scores ``[L, H]``.

    Args:
        measure: the value of a model: ``metric`` (share of right predictions) or ``loss`` (minus the mean loss, which
            also ranks heads that change no prediction, so that ``compress heads`` and ``compress prune`` use it).
        values: known evaluations; new ones are added.
    """
    kept, known = list(batches), values or Values()
    present = unmasked(model)["heads"] if masks is None else [m.clone() for m in masks]
    scores = [torch.zeros(len(heads)) for heads in present]
    with fixed_weights(model):
        whole = known.of(model, {"heads": present}, kept, measure)
        for layer, heads in enumerate(present):
            for head in heads.nonzero().flatten().tolist():
                heads[head] = 0.0
                scores[layer][head] = whole - known.of(model, {"heads": present}, kept, measure)
                heads[head] = 1.0
    return as_scores(scores, masks)
