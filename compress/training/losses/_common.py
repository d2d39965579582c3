"""Shared by losses: pairs of layers, attention scores, divergences and means without padding.

Padded tokens count nowhere, and tensors that a loss does not use get a gradient of zero.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from compress.errors import CompressError
from compress.models.batch import Batch, Outputs
from compress.training.layer_mapping import trained_pairs


def hidden_pairs(student: Outputs, teacher: Outputs, layers: str, *, loss: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the hidden states ``[B, T, D]`` float32 of student and teacher for each pair of layers trained now."""
    require_outputs("hidden", loss=loss, student=student, teacher=teacher)
    for ours, theirs in trained_pairs(student, teacher, layers):
        yield student.hidden[ours].float(), teacher.hidden[theirs].float()


def first_token_pairs(student: Outputs, teacher: Outputs, layers: str, *, loss: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first token's hidden states ``[B, D]``, of equal width, for each pair of layers trained now."""
    require_outputs("hidden", loss=loss, student=student, teacher=teacher)
    ours, theirs = first_states(student), first_states(teacher)
    require_equal_widths(ours, theirs, loss=loss)
    for layer, teacher_layer in trained_pairs(student, teacher, layers):
        yield ours[:, layer], theirs[:, teacher_layer]


def attention_pairs(student: Outputs, teacher: Outputs, layers: str, *, loss: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the attention scores ``[B, H, T, T]``, of equally many heads, for each pair of layers trained now.

    They are ``q k' / sqrt(d)``, before the softmax and without a mask. The bias of relative positions that MPNet adds
    is not included.
    """
    require_outputs("queries", loss=loss, student=student, teacher=teacher)
    for layer, teacher_layer in trained_pairs(student, teacher, layers):
        ours = scaled_products(student.queries[layer - 1], student.keys[layer - 1])
        theirs = scaled_products(teacher.queries[teacher_layer - 1], teacher.keys[teacher_layer - 1])
        require_equal_heads(ours, theirs, loss=loss)
        yield ours, theirs


def soft_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return ``T**2 KL(p_teacher || p_student)`` with ``p = softmax(z / T)`` for logits ``[N, C]``, the mean over N."""
    ours, theirs = (nn.functional.log_softmax(logits.float() / temperature, dim=-1) for logits in (student, teacher))
    return temperature**2 * nn.functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def zero(student: Outputs) -> Tensor:
    """Return a zero ``[]`` float32 with a gradient of zeros."""
    return student.logits.float().sum() * 0


def scaled_products(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left right' / sqrt(d)`` for ``[B, H, T, d]``, in float32: ``[B, H, T, T]``."""
    left, right = left.float(), right.float()
    return left @ right.transpose(-1, -2) / math.sqrt(left.shape[-1])


def split_heads(vectors: Tensor, heads: int) -> Tensor:
    """Return ``[B, H, T, d]`` as ``[B, heads, T, H d / heads]``: the same vectors, cut into other heads.

    Raises:
        CompressError: the width does not divide by the number of heads.
    """
    rows, there, tokens, width = vectors.shape
    if heads < 1 or there * width % heads:
        raise CompressError(f"a width of {there * width} does not divide into {heads} relation heads; choose another")
    return vectors.transpose(1, 2).reshape(rows, tokens, heads, -1).transpose(1, 2)


def relation_divergence(student: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
    """Return ``KL(softmax teacher || softmax student)`` of two scores ``[B, H, T, T]``.

    The mean over heads and the real tokens of an example, then over examples: each example counts the same, whatever
    its length (Wang et al. 2020, "MiniLM", arXiv:2002.10957, equation 6).
    """
    padding = batch.attention_mask[:, None, None, :] == 0
    ours, theirs = (
        nn.functional.log_softmax(scores.masked_fill(padding, torch.finfo(scores.dtype).min), dim=-1)
        for scores in (student, teacher)
    )
    terms = (theirs.exp() * (theirs - ours)).masked_fill(padding, 0.0)
    by_token = terms.sum(dim=-1).mean(dim=1).masked_fill(batch.attention_mask == 0, 0.0)
    return (by_token.sum(dim=1) / batch.attention_mask.sum(dim=1).clamp(min=1)).mean()


def token_mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of ``[B, T]`` over all tokens of the batch that are no padding."""
    return values.masked_fill(batch.attention_mask == 0, 0.0).sum() / batch.attention_mask.sum()


def pair_mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of ``[B, H, T, T]`` over heads and all pairs of tokens of the batch that are no padding."""
    mask = batch.attention_mask.bool()
    pairs = (mask[:, :, None] & mask[:, None, :])[:, None]
    return values.masked_fill(~pairs, 0.0).sum() / (pairs.sum() * values.shape[1])


def first_states(outputs: Outputs) -> Tensor:
    """Return the hidden states of the first token, embeddings first: ``[B, L + 1, D]`` float32."""
    if outputs.first is not None:
        return outputs.first.float()
    return torch.stack([hidden[:, 0] for hidden in outputs.hidden], dim=1).float()


def require_outputs(what: str, *, loss: str, **sides: Outputs) -> None:
    """Refuse sides, ``student`` or ``teacher``, that have none of what a loss reads: ``hidden`` or ``queries``."""
    for side, outputs in sides.items():
        if not getattr(outputs, what) and not (what == "hidden" and outputs.first is not None):
            inside = "hidden states" if what == "hidden" else "attention heads that compress knows"
            raise CompressError(f"the loss {loss} compares {inside}, and this {side} has none; use logit-mse or kl")


def require_equal_heads(student: Tensor, teacher: Tensor, *, loss: str) -> None:
    """Refuse ``[B, H, T, d]`` or ``[B, H, T, T]`` of different numbers of heads."""
    if student.shape[1] != teacher.shape[1]:
        raise CompressError(
            f"the loss {loss} compares head by head, and the student has {student.shape[1]} heads, the teacher "
            f"{teacher.shape[1]}: give them equal numbers, or use the loss relations with relation_heads"
        )


def require_equal_widths(student: Tensor, teacher: Tensor, *, loss: str) -> None:
    """Refuse ``[..., D]`` of different widths."""
    if student.shape[-1] != teacher.shape[-1]:
        raise CompressError(
            f"the loss {loss} needs equal widths; the student has {student.shape[-1]} and the teacher "
            f"{teacher.shape[-1]}: leave hidden_size out of the recipe, or use hidden-mse, which learns a projection"
        )
