"""Supervised contrastive loss: texts of one class are to have like states, texts of others unlike ones.

Khosla et al. 2020, "Supervised Contrastive Learning" (arXiv:2004.11362), equation 2: of every text the mean of its last
states, of length 1, is to be closer to those of its class in the batch than to the others. Texts of a class of which
there is one do not count as anchors.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from compress.errors import refuse
from compress.models.batch import Batch, Outputs
from compress.tasks import NO_LABEL
from compress.training.losses._common import require_outputs, zero

NEEDS = frozenset({"labels", "classes"})
STUDENT_NEEDS = frozenset({"hidden"})
MEAN_OVER = "labels"


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, temperature: float = 0.1) -> Tensor:
    """Return the mean over the texts that have another of their class beside them; zero when none has.

    Args:
        temperature: divides the cosines.

    Raises:
        CompressError: a student without hidden states, or rows that have not one class each.
    """
    require_outputs("hidden", loss="contrastive", student=student)
    if batch.labels is None:
        return zero(student)
    one_each = batch.labels.dim() == 1 and batch.words is None
    refuse((not one_each, "the loss contrastive compares texts of one class each; use hard-label"))
    states = normalize((student.hidden[-1].float() * batch.attention_mask.unsqueeze(-1)).sum(dim=1), dim=-1)
    labels, known = batch.labels, batch.labels != NO_LABEL
    others = known & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    scores = (states @ states.T / temperature).masked_fill(~others, torch.finfo(states.dtype).min)
    alike = others & known[:, None] & (labels[:, None] == labels)
    counts = alike.sum(dim=1)
    terms = scores.log_softmax(dim=-1).masked_fill(~alike, 0.0).sum(dim=1) / counts.clamp(min=1)
    return zero(student) - terms.sum() / (counts > 0).sum().clamp(min=1)
