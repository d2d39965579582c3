"""How sharply a head attends: the mean over tokens of its largest attention weight, the end of a text left out.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention" (arXiv:1905.09418), section 4. No labels are read. Every token
can rest its attention on the end of its text, so that weights on it say nothing.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.models.batch import Batch
from compress.models.frozen import fixed_weights
from compress.pruning.scoring import as_scores
from compress.surgery.unit_masks import mask_hooks


@torch.no_grad()
def importance(model: PreTrainedModel, batches: Iterable[Batch], masks: Sequence[Tensor] | None = None) -> Tensor:
    """Return raw scores ``[L, H]``; a layer that is used several times (ALBERT) has the mean over its uses."""
    before = model.config._attn_implementation
    with fixed_weights(model), mask_hooks(model) as hooks:
        if masks is not None:
            hooks.mask(masks)
        totals = [torch.zeros(heads, dtype=torch.float64) for heads in hooks.counts]
        tokens = 0
        model.set_attn_implementation("eager")  # the others give no weights
        try:
            for batch in batches:
                read = batch.attention_mask.bool()
                asked = _asked(batch)[:, None, None, :]
                attentions = model(**batch.inputs(), output_attentions=True).attentions
                for use, weights in enumerate(attentions):
                    largest = weights.masked_fill(~asked, 0.0).amax(dim=-1)  # [B, H, T]
                    by_head = (largest * read[:, None, :]).sum(dim=(0, 2)).double().cpu()
                    totals[use % len(totals)] += by_head * len(totals) / len(attentions)
                tokens += int(read.sum())
        finally:
            model.set_attn_implementation(before)
    return as_scores([total / tokens for total in totals], masks)


def _asked(batch: Batch) -> Tensor:
    """Return ``[B, T]``: the tokens that are neither padding nor the sign that ends a text, wherever it stands."""
    last = batch.attention_mask.sum(dim=1, keepdim=True) - 1
    end = batch.input_ids.gather(1, last)
    return batch.attention_mask.bool() & (batch.input_ids != end)
