"""Shared by losses: pairs of layers, attention scores, divergences and means without padding.

Padded tokens count nowhere, and tensors that a loss does not use get a gradient of zero.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

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
    """Yield the attention scores ``[B, H, T, T]``, of equally many heads, for each pair of layers trained now."""
    require_outputs("queries", loss=loss, student=student, teacher=teacher)
    for layer, teacher_layer in trained_pairs(student, teacher, layers):
        ours, theirs = attention_scores(student, layer), attention_scores(teacher, teacher_layer)
        require_equal_heads(ours, theirs, loss=loss)
        yield ours, theirs


def soft_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return ``T**2 KL(p_teacher || p_student)`` with ``p = softmax(z / T)`` for logits ``[N, C]``, the mean over N."""
    ours, theirs = (log_softmax(logits.float() / temperature, dim=-1) for logits in (student, teacher))
    return temperature**2 * kl_div(ours, theirs, reduction="batchmean", log_target=True)


def zero(student: Outputs) -> Tensor:
    """Return a zero ``[]`` float32 with a gradient of zeros."""
    return student.logits.float().sum() * 0


def attention_scores(outputs: Outputs, layer: int) -> Tensor:
    """Return ``q k' / sqrt(d)`` of a layer counted from 1, before the softmax and without a mask: ``[B, H, T, T]``.

    The bias of relative positions that MPNet adds to it is not in it.
    """
    return scaled_products(outputs.queries[layer - 1], outputs.keys[layer - 1])


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
    whole = vectors.transpose(1, 2).reshape(rows, tokens, there * width)
    return whole.reshape(rows, tokens, heads, there * width // heads).transpose(1, 2)


def log_probabilities(scores: Tensor, batch: Batch) -> Tensor:
    """Return the log softmax ``[B, H, T, T]`` over the keys that are no padding; the others hold a large negative."""
    closed = batch.attention_mask[:, None, None, :] == 0
    return log_softmax(scores.masked_fill(closed, torch.finfo(scores.dtype).min), dim=-1)


def relation_divergence(student: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
    """Return ``KL(softmax teacher || softmax student)`` of two scores ``[B, H, T, T]``.

    The mean over heads and the real tokens of an example, then over examples: each example counts the same, whatever
    its length (Wang et al. 2020, "MiniLM", arXiv:2002.10957, equation 6).
    """
    ours, theirs = log_probabilities(student, batch), log_probabilities(teacher, batch)
    closed = batch.attention_mask[:, None, None, :] == 0
    terms = (theirs.exp() * (theirs - ours)).masked_fill(closed, 0.0)
    by_token = _without_padding(terms.sum(dim=-1).mean(dim=1), batch)
    return (by_token.sum(dim=1) / batch.attention_mask.sum(dim=1).clamp(min=1)).mean()


def token_mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of ``[B, T]`` over all tokens of the batch that are no padding."""
    return _without_padding(values, batch).sum() / batch.attention_mask.sum()


def pair_mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of ``[B, H, T, T]`` over heads and all pairs of tokens of the batch that are no padding."""
    mask = batch.attention_mask.bool()
    pairs = (mask[:, :, None] & mask[:, None, :])[:, None]
    return values.masked_fill(~pairs, 0.0).sum() / (pairs.sum() * values.shape[1])


def _without_padding(values: Tensor, batch: Batch) -> Tensor:
    return values.masked_fill(batch.attention_mask == 0, 0.0)


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
