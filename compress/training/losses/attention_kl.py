"""Kullback-Leibler divergence between the attention probabilities of teacher and student, head by head.

Aguilar et al. 2020, "Knowledge Distillation from Internal Representations" (arXiv:1910.03723), section 3, and Sun et
al. 2020, "MobileBERT" (arXiv:2004.02984), section 3.5 (there as a cross-entropy, which differs by a constant):
``KL(A_T || A_S)`` per head and query; the mean over heads and real tokens of an example, then over examples; the sum
over layers. Padding counts neither as a query nor as a key.
"""

from __future__ import annotations

from torch import Tensor

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import (
    attention_scores,
    relation_divergence,
    require,
    require_equal_heads,
    sum_over_layers,
)

NEEDS = frozenset({"attention"})
STUDENT_NEEDS = frozenset({"attention"})


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, layers: str = "uniform") -> Tensor:
    """Return the sum over layers of the mean divergence of a head's attention.

    Raises:
        CompressError: a side without attention heads, or with another number of them.
    """
    require("queries", loss="attention-kl", student=student, teacher=teacher)

    def divergence(ours: int, theirs: int) -> Tensor:
        learner, model = attention_scores(student, ours), attention_scores(teacher, theirs)
        require_equal_heads(learner, model, loss="attention-kl")
        return relation_divergence(learner, model, batch)

    return sum_over_layers(student, teacher, layers, divergence)
