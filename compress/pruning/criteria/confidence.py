"""How sharply a head attends: the mean over tokens of its largest attention weight, the end of a text left out.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention" (arXiv:1905.09418), section 4. No labels are read. Every token
can put its attention on the token that ends its text, so that weights on it (wherever it occurs) are left out.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.models.components import fixed_weights
from compress.pruning.scoring import Batches, LayerMasks, as_scores
from compress.surgery.unit_masks import mask_hooks


@torch.no_grad()
def importance(model: PreTrainedModel, batches: Batches, masks: LayerMasks | None = None) -> Tensor:
    """Return raw scores ``[L, H]``; a layer that is used several times (ALBERT) has the mean over its uses."""
    before = model.config._attn_implementation
    with fixed_weights(model), mask_hooks(model) as hooks:
        hooks.mask(masks)
        totals = [torch.zeros(heads, dtype=torch.float64) for heads in hooks.counts]
        tokens = 0
        model.set_attn_implementation("eager")  # the others give no weights
        try:
            for batch in batches:
                read = batch.attention_mask.bool()
                end = batch.input_ids.gather(1, batch.attention_mask.sum(dim=1, keepdim=True) - 1)  # [B, 1]
                counted = (read & (batch.input_ids != end))[:, None, None, :]
                attentions = model(**batch.inputs(), output_attentions=True).attentions
                for use, weights in enumerate(attentions):
                    largest = weights.masked_fill(~counted, 0.0).amax(dim=-1)  # [B, H, T]
                    by_head = (largest * read[:, None, :]).sum(dim=(0, 2)).double().cpu()
                    totals[use % len(totals)] += by_head * len(totals) / len(attentions)
                tokens += int(read.sum())
        finally:
            model.set_attn_implementation(before)
    return as_scores([total / tokens for total in totals], masks)
