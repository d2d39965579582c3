"""What passes between a model, its teacher and a loss. Shapes: B batch, T tokens, C classes,
D hidden width, L layers, H heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One batch of tokenised text, padded on the right.

    ``labels`` is ``[B]``: class indices (``-100`` where a row has no gold label) or float targets (``nan`` where
    a row has none) for regression; ``None`` when no row has one.
    """

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None = None
    labels: Tensor | None = None

    def inputs(self) -> dict[str, Tensor]:
        """Return the tensors that a model's ``forward`` takes."""
        named = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        if self.token_type_ids is not None:
            named["token_type_ids"] = self.token_type_ids
        return named


@dataclass(frozen=True)
class Outputs:
    """What a forward pass gave.

    ``logits`` ``[B, C]``, ``hidden`` (L+1) x ``[B, T, D]`` with the embeddings first, ``attention`` L x
    ``[B, H, T, T]``.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    attention: tuple[Tensor, ...] = ()


class TeacherSignal(Protocol):
    """The teacher's outputs for a batch. A loss cannot tell whether they were cached or computed just now."""

    def __call__(self, batch: Batch, cached_logits: Tensor | None) -> Outputs: ...
