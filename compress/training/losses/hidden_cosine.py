"""One minus the cosine between hidden states of student and teacher, by default the last ones.

Sanh et al. 2019, "DistilBERT" (arXiv:1910.01108), section 3: it aligns the directions of the hidden states. The
teacher runs live for it. The mean over all tokens of the batch that are no padding; the sum over layers.
"""

from torch import Tensor
from torch.nn.functional import cosine_similarity

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import hidden_pairs, token_mean, zero

NEEDS = frozenset({"hidden"})
MEAN_OVER = "tokens"


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, layers: str = "final") -> Tensor:
    """Return the mean of ``1 - cos`` over every token that is not padding; :mod:`first_cosine` compares the first.

    Raises:
        CompressError: the student has no hidden states, or is not as wide as the teacher.
    """
    pairs = hidden_pairs(student, teacher, layers, loss="hidden-cosine", equal_widths=True)
    return sum(
        (token_mean(1 - cosine_similarity(ours, theirs, dim=-1), batch) for ours, theirs in pairs), start=zero(student)
    )
