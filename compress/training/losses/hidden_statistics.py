"""Difference between the mean and the variance of each token's hidden state, over its width.

Sun et al. 2020, "MobileBERT" (arXiv:2004.02984), section 3.5 and the authors' code: beside hidden-mse on normalised
states, what the normalisation took away. Squared difference of means times 5000, absolute difference of variances
times 5; the mean over all real tokens of the batch, the sum over layers.
"""

from torch import Tensor

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import hidden_pairs, token_mean, zero

NEEDS = frozenset({"hidden"})
MEAN_OVER = "tokens"


def loss(
    student: Outputs,
    teacher: Outputs,
    batch: Batch,
    *,
    layers: str = "uniform",
    mean_factor: float = 5000.0,
    variance_factor: float = 5.0,
) -> Tensor:
    """Return the sum over layers of both differences times their factors; widths may differ.

    Raises:
        CompressError: a side without hidden states.
    """
    total = zero(student)
    for ours, theirs in hidden_pairs(student, teacher, layers, loss="hidden-statistics"):
        means = (ours.mean(dim=-1) - theirs.mean(dim=-1)).square()
        variances = (ours.var(dim=-1, correction=0) - theirs.var(dim=-1, correction=0)).abs()
        total = total + token_mean(mean_factor * means + variance_factor * variances, batch)
    return total
