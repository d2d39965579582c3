"""How much the loss of each example would change if a head were damped: ``I_h = mean over examples of |dL/dxi_h|``.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (arXiv:1905.10650), equation 3. A gate of its own for
every example makes one backward of the *summed* loss give each example's gradient, so that absolute values are taken
before the mean, as the equation says, and nothing piles up over batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from compress.attention import head_gates
from compress.types import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def importance(model: PreTrainedModel, batches: Iterable[Batch], masks: Sequence[Tensor] | None = None) -> Tensor:
    """Return raw scores ``[L, H]``, H being the largest number of heads of a layer; missing heads score zero.

    The loss is cross-entropy with ``batch.labels`` ``[B]`` (squared error for regression); labels are required. The
    loss of a sentence to tag is the sum over its words.
    """
    model.eval()
    frozen = [parameter.requires_grad for parameter in model.parameters()]
    model.requires_grad_(False)  # only the gates need a gradient; this spares two thirds of the backward
    try:
        with head_gates(model) as gates, torch.enable_grad():
            if masks is not None:
                gates.mask(masks)
            totals = [torch.zeros(heads, dtype=torch.float64) for heads in gates.heads]
            rows = 0
            for batch in batches:
                if batch.labels is None:
                    raise ValueError("gradient importance needs labels")
                opened = gates.per_example(len(batch.input_ids))
                logits = batch.answers(model(**batch.inputs()).logits)
                gradients = torch.autograd.grad(summed_loss(logits, batch.labels), opened)
                for total, gradient in zip(totals, gradients, strict=True):
                    total += gradient.abs().sum(dim=0).double().cpu()
                rows += len(batch.input_ids)
    finally:
        for parameter, wanted in zip(model.parameters(), frozen, strict=True):
            parameter.requires_grad_(wanted)
    scores = torch.zeros(len(totals), max(map(len, totals)))
    for layer, total in enumerate(totals):
        scores[layer, : len(total)] = (total / rows).float()
        if masks is not None:
            scores[layer, : len(total)] *= torch.as_tensor(masks[layer])
    return scores


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the task loss summed over examples, so that each example's gradient is its own."""
    if logits.shape[-1] == 1:
        return ((logits.squeeze(-1) - labels) ** 2).sum()
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
