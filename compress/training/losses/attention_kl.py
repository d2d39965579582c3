"""Kullback-Leibler divergence between the attention probabilities of teacher and student, head by head.

Aguilar et al. 2020, "Knowledge Distillation from Internal Representations" (arXiv:1910.03723), section 3, and Sun et
al. 2020, "MobileBERT" (arXiv:2004.02984), section 3.5 (there as a cross-entropy, which differs by a constant):
``KL(A_T || A_S)`` per head and query; the mean over heads and real tokens of an example, then over examples; the sum
over layers. Padding counts neither as a query nor as a key.
"""

from torch import Tensor

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import attention_pairs, relation_divergence, zero

NEEDS = frozenset({"attention"})
MEAN_OVER = "texts"


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, layers: str = "uniform") -> Tensor:
    """Return the sum over layers of the mean divergence of a head's attention.

    Raises:
        CompressError: a side without attention heads, or with another number of them.
    """
    pairs = attention_pairs(student, teacher, layers, loss="attention-kl")
    return sum((relation_divergence(ours, theirs, batch) for ours, theirs in pairs), start=zero(student))
