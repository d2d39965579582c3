"""One minus the cosine between the first tokens' hidden states of student and teacher, layer by layer.

Aguilar et al. 2020, "Knowledge Distillation from Internal Representations" (arXiv:1910.03723), section 3: beside
attention-kl, it matches the [CLS] vector of each layer. The mean over rows, the sum over layers.
"""

from torch import Tensor
from torch.nn.functional import cosine_similarity

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import first_token_pairs, zero

NEEDS = frozenset({"first"})
MEAN_OVER = "texts"


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, layers: str = "uniform") -> Tensor:
    """Return the sum over layers of the mean over rows of ``1 - cos(h_student, h_teacher)`` at the first token.

    Raises:
        CompressError: the student has no hidden states, or is not as wide as the teacher.
    """
    pairs = first_token_pairs(student, teacher, layers, loss="first-cosine")
    return sum(((1 - cosine_similarity(ours, theirs, dim=-1)).mean() for ours, theirs in pairs), start=zero(student))
