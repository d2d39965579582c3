"""One minus the cosine between the first tokens' hidden states of student and teacher, layer by layer.

Aguilar et al. 2020, "Knowledge Distillation from Internal Representations" (arXiv:1910.03723), section 3: beside
attention-kl, it teaches what the [CLS] vector of each layer has gathered. The mean over rows, the sum over layers.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cosine_similarity

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import first_tokens, require, require_equal_widths, sum_over_layers

NEEDS = frozenset({"first"})
STUDENT_NEEDS = frozenset({"hidden"})


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, layers: str = "uniform") -> Tensor:
    """Return the sum over layers of the mean over rows of ``1 - cos(h_student, h_teacher)`` at the first token.

    Raises:
        CompressError: the student has no hidden states, or is not as wide as the teacher.
    """
    require("hidden", loss="first-cosine", student=student, teacher=teacher)
    ours, theirs = first_tokens(student), first_tokens(teacher)
    require_equal_widths(ours, theirs, loss="first-cosine")
    return sum_over_layers(
        student, teacher, layers, lambda m, n: (1 - cosine_similarity(ours[:, m], theirs[:, n], dim=-1)).mean()
    )
