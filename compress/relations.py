"""What losses compare inside two models: attention scores, relations between tokens, and means without padding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from compress.errors import CompressError
from compress.types import Batch, Outputs


def attention_scores(outputs: Outputs, layer: int) -> Tensor:
    """Return ``q k' / sqrt(d)`` of a layer counted from 1, before the softmax and without a mask: ``[B, H, T, T]``."""
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
    if there * width % heads:
        raise CompressError(f"a width of {there * width} does not divide into {heads} relation heads; choose another")
    whole = vectors.transpose(1, 2).reshape(rows, tokens, there * width)
    return whole.reshape(rows, tokens, heads, there * width // heads).transpose(1, 2)


def log_probabilities(scores: Tensor, batch: Batch) -> Tensor:
    """Return the log softmax over the keys that are no padding: ``[B, H, T, T]``; keys that are have a large
    negative.
    """
    closed = batch.attention_mask[:, None, None, :] == 0
    return torch.log_softmax(scores.masked_fill(closed, torch.finfo(scores.dtype).min), dim=-1)


def relation_divergence(student: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
    """Return ``KL(softmax teacher || softmax student)`` of two ``[B, H, T, T]`` scores: the mean over heads and
    tokens.
    """
    ours, theirs = log_probabilities(student, batch), log_probabilities(teacher, batch)
    closed = batch.attention_mask[:, None, None, :] == 0
    terms = (theirs.exp() * (theirs - ours)).masked_fill(closed, 0.0)
    return token_mean(terms.sum(dim=-1).mean(dim=1), batch)


def token_mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of ``[B, T]`` over the tokens that are no padding."""
    mask = batch.attention_mask.to(values.dtype)
    return (values * mask).sum() / mask.sum()


def first_tokens(outputs: Outputs) -> Tensor:
    """Return the hidden states of the first token, embeddings first: ``[B, L + 1, D]`` float32."""
    if outputs.first is not None:
        return outputs.first.float()
    return torch.stack([hidden[:, 0] for hidden in outputs.hidden], dim=1).float()


def require(student: Outputs, teacher: Outputs, what: str, *, loss: str) -> None:
    """Refuse a student or teacher that has none of what a loss compares, such as ``hidden`` or ``queries``."""
    for side, outputs in (("student", student), ("teacher", teacher)):
        if not getattr(outputs, what) and not (what == "hidden" and outputs.first is not None):
            inside = "hidden states" if what == "hidden" else "attention heads that compress knows"
            raise CompressError(f"the loss {loss} compares {inside}, and this {side} has none; use logit-mse or kl")


def require_equal_heads(student: Tensor, teacher: Tensor, *, loss: str) -> None:
    """Refuse ``[B, H, T, d]`` of different numbers of heads."""
    if student.shape[1] != teacher.shape[1]:
        raise CompressError(
            f"the loss {loss} compares head by head, and the student has {student.shape[1]} heads, the teacher "
            f"{teacher.shape[1]}: give them equal numbers, or use the loss relations, which re-splits both"
        )
