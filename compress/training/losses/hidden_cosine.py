"""One minus the cosine between hidden states of student and teacher, by default the last ones.

Sanh et al. 2019, "DistilBERT" (arXiv:1910.01108), section 3: it aligns the directions of the hidden states. The
teacher runs live for it. The mean over all tokens of the batch that are no padding; the sum over layers.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cosine_similarity

from compress.errors import CompressError
from compress.models.batch import Batch, Outputs
from compress.training.losses._common import require, require_equal_widths, sum_over_layers, token_mean

NEEDS = frozenset({"hidden"})
STUDENT_NEEDS = frozenset({"hidden"})


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, tokens: str = "all", layers: str = "final") -> Tensor:
    """Return the mean of ``1 - cos`` over every token that is not padding, or over the first (``tokens = "first"``).

    Raises:
        CompressError: the student has no hidden states, or is not as wide as the teacher.
    """
    require("hidden", loss="hidden-cosine", student=student, teacher=teacher)
    require_equal_widths(student.hidden[-1], teacher.hidden[-1], loss="hidden-cosine")
    if tokens not in {"all", "first"}:
        raise CompressError(f"hidden-cosine: tokens = {tokens!r} is not allowed; use 'all' or 'first'")

    def distance(ours: int, theirs: int) -> Tensor:
        distances = 1 - cosine_similarity(student.hidden[ours].float(), teacher.hidden[theirs].float(), dim=-1)
        return distances[:, 0].mean() if tokens == "first" else token_mean(distances, batch)

    return sum_over_layers(student, teacher, layers, distance)
