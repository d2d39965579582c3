"""One minus the cosine between the last hidden states of student and teacher.

Sanh et al. 2019, "DistilBERT" (arXiv:1910.01108), section 3: it aligns the directions of the hidden states. The
teacher runs live for it.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cosine_similarity

from compress.errors import CompressError
from compress.types import Batch, Outputs

NEEDS = frozenset({"hidden"})


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, tokens: str = "all") -> Tensor:
    """Return the mean of ``1 - cos`` over every token that is not padding, or over the first (``tokens = "first"``).

    Raises:
        CompressError: the student has no hidden states, or is not as wide as the teacher.
    """
    if not student.hidden or not teacher.hidden:
        raise CompressError("the loss hidden-cosine compares hidden states, and this student has none; use logit-mse")
    ours, theirs = student.hidden[-1].float(), teacher.hidden[-1].float()
    if ours.shape[-1] != theirs.shape[-1]:
        raise CompressError(
            f"the loss hidden-cosine needs equal widths; the student has {ours.shape[-1]} and the teacher "
            f"{theirs.shape[-1]}: leave hidden_size out of the recipe, or this loss"
        )
    if tokens not in {"all", "first"}:
        raise CompressError(f"hidden-cosine: tokens = {tokens!r} is not allowed; use 'all' or 'first'")
    distance = 1 - cosine_similarity(ours, theirs, dim=-1)
    if tokens == "first":
        return distance[:, 0].mean()
    mask = batch.attention_mask.to(distance.dtype)
    return (distance * mask).sum() / mask.sum()
