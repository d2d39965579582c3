"""Cross-entropy with gold labels (mean squared error for regression); rows without a gold label do not count."""

from torch import Tensor, nn

from compress.models.batch import NO_LABEL, Batch, Outputs
from compress.training.losses._common import zero

NEEDS = frozenset({"labels"})
MEAN_OVER = "labels"


def loss(student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
    """Return the mean over the rows of the batch that have a gold label; zero when none has."""
    if batch.labels is None:
        return zero(student)
    logits, labels = student.logits.float(), batch.labels  # no row is picked out: a GPU would wait to count them
    if logits.shape[-1] == 1:
        known = ~labels.isnan()
        total = nn.functional.mse_loss(logits[:, 0], labels.where(known, logits[:, 0].detach()), reduction="sum")
    else:
        known = labels != NO_LABEL
        total = nn.functional.cross_entropy(logits, labels, ignore_index=NO_LABEL, reduction="sum")
    return total / known.sum().clamp(min=1)
