"""Kullback-Leibler divergence between softened predictions, times the square of the temperature.

Hinton et al. 2015, "Distilling the Knowledge in a Neural Network" (arXiv:1503.02531), section 2: without the factor
T**2 the gradients shrink as 1/T**2 and the weight of this loss would depend on the temperature.
"""

from torch import Tensor

from compress.models.batch import Batch, Outputs

NEEDS = frozenset({"logits", "classes"})


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, temperature: float = 2.0) -> Tensor:
    """Return ``T**2 * mean over the batch of KL(p_teacher || p_student)``, with ``p = softmax(z / T)`` of classes."""
    return batch.task.divergence(student.logits, teacher.logits, temperature)
