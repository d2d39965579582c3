"""Mean squared error between attention scores before the softmax, head by head.

Jiao et al. 2020, "TinyBERT" (arXiv:1909.10351), equation 7: ``(1/h) sum_i MSE(A_S_i, A_T_i)`` with
``A = q k' / sqrt(d)``; the sum over layers. The authors' code sets the scores of padded keys to 0 on both sides, but
counts padded queries and divides by the padded length; here padding does not count at all: the mean over heads and
all pairs of real tokens of the batch.
"""

from torch import Tensor

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import attention_pairs, zero

NEEDS = frozenset({"attention"})
MEAN_OVER = "pairs"


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, layers: str = "uniform") -> Tensor:
    """Return the sum over layers of the mean squared difference of scores.

    Raises:
        CompressError: a side without attention heads, or with another number of them.
    """
    mask = batch.attention_mask.bool()
    real = (mask[:, :, None] & mask[:, None, :])[:, None]
    return sum(
        (
            (ours - theirs).square().masked_fill(~real, 0.0).sum() / (real.sum() * ours.shape[1])
            for ours, theirs in attention_pairs(student, teacher, layers, loss="attention-mse")
        ),
        start=zero(student),
    )
