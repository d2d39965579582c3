"""Cross-entropy with gold labels (mean squared error for regression); rows without a gold label do not count.

Where the training asks for it, classes have weights, and logits their prior (:class:`compress.models.batch.Balance`).
"""

from torch import Tensor

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import zero

NEEDS = frozenset({"labels"})
MEAN_OVER = "labels"


def loss(student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
    """Return the mean over the rows of the batch that have a gold label; zero when none has."""
    if batch.labels is None:
        return zero(student)
    logits, labels = student.logits.float(), batch.labels  # no row is picked out: a GPU would wait to count them
    weights, shift = batch.balance.weights, batch.balance.shift
    logits = logits + logits.new_tensor(shift) if shift else logits
    total, known = batch.task.hard_loss(logits, labels, logits.new_tensor(weights) if weights else None)
    return total / known.sum().clamp(min=1)
