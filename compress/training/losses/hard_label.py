"""Cross-entropy with gold labels (mean squared error for regression); rows without a gold label do not count."""

from torch import Tensor, nn

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import zero

NEEDS = frozenset({"labels"})
MEAN_OVER = "labels"
NO_LABEL = -100


def loss(student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
    """Return the mean over the rows of the batch that have a gold label; zero when none has."""
    if batch.labels is None:
        return zero(student)
    is_regression = student.logits.shape[-1] == 1
    known = ~batch.labels.isnan() if is_regression else batch.labels != NO_LABEL
    if not known.any():
        return zero(student)
    logits, labels = student.logits[known].float(), batch.labels[known]
    return (
        nn.functional.mse_loss(logits[:, 0], labels) if is_regression else nn.functional.cross_entropy(logits, labels)
    )
