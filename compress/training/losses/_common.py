"""Shared by losses: pairs of layers, divergences and means without padding, and the modules that losses train.

Layers are counted from 1; 0 is the embeddings. Padded tokens count nowhere, and tensors that a loss does not use get a
gradient of zero. Shapes: B batch, T tokens, N masked tokens, D hidden width, H heads of width d, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from compress.errors import refuse
from compress.models.batch import NO_TARGET, Batch, Outputs
from compress.models.components import input_embeddings
from compress.models.modeling.families import stock_type

MAPS = ("uniform", "skip", "last", "final")
GELU_HEADS = frozenset({"electra", "mpnet", "roberta", "xlm-roberta"})  # whatever their layers have


def layer_map(student_layers: int, teacher_layers: int, layers: str = "uniform") -> list[tuple[int, int]]:
    """Return pairs (student's layer, teacher's layer).

    ``uniform`` is TinyBERT's ``g(m) = m * L_T / L_S`` (Jiao et al. 2020, arXiv:1909.10351, section 3.1); ``skip`` the
    same without the last layer, which the soft labels teach, and ``last`` the layers just below the teacher's last,
    both of Patient Knowledge Distillation (Sun et al. 2019, arXiv:1908.09355, section 3.2); ``final`` the last layer
    only (MiniLM, Wang et al. 2020, arXiv:2002.10957). A student of one layer has no layer for ``skip`` and ``last``.
    Numbers such as ``1,2,5,6`` are the teacher's layers of the student's layers from the first to the last.

    Raises:
        CompressError: an unknown map, layers that are not there, or a student deeper than its teacher.
    """
    if layers[:1].isdigit():
        numbers = [int(number) if number.strip().isdigit() else -1 for number in layers.split(",")]
        refuse(
            (
                len(numbers) != student_layers or not all(0 <= number <= teacher_layers for number in numbers),
                f"layers = {layers!r} must be {student_layers} numbers from 0 to {teacher_layers}, a teacher's layer "
                "for each of the student's",
            )
        )
        return list(enumerate(numbers, start=1))
    refuse(
        (
            layers not in MAPS,
            f"layers = {layers!r} is not known; use {', '.join(MAPS)}, or a teacher's layer for each of the student's, "
            "such as '1,2,5,6'",
        ),
        (
            layers != "final" and student_layers > teacher_layers,
            f"the layer map {layers!r} is for students that are not deeper than their teacher; this one has "
            f"{student_layers} layers and the teacher {teacher_layers}: use layers = 'final', or fewer layers",
        ),
    )
    if layers == "final":
        return [(student_layers, teacher_layers)]
    if layers == "last":
        return [(m, teacher_layers - student_layers + m) for m in range(1, student_layers)]
    # Where the depths do not divide, a half always goes up; round() would take the even layer.
    pairs = [(m, math.floor(m * teacher_layers / student_layers + 0.5)) for m in range(1, student_layers + 1)]
    return pairs if layers == "uniform" else pairs[:-1]


def kept_layer_map(before: Sequence[int], after: Sequence[int]) -> str:
    """Return the map of a student that is its teacher without some layers, each named by its number.

    A student layer learns the input that its next layer had in the teacher, and the last one the teacher's last output.
    """
    return ",".join(map(str, (*map(before.index, after[1:]), len(before))))


def trained_pairs(student: Outputs, teacher: Outputs, layers: str) -> list[tuple[int, int]]:
    """Return the pairs of :func:`layer_map` whose student layer is trained now, which may be none."""
    trained, pairs = student.trained_layers, layer_map(student.layers, teacher.layers, layers)
    return [pair for pair in pairs if trained is None or pair[0] in trained]


def hidden_pairs(
    student: Outputs, teacher: Outputs, layers: str, *, loss: str, equal_widths: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the hidden states ``[B, T, D]`` float32 of student and teacher for each pair of layers trained now."""
    require_outputs("hidden", loss=loss, student=student, teacher=teacher)
    for layer, teacher_layer in trained_pairs(student, teacher, layers):
        ours, theirs = student.hidden[layer].float(), teacher.hidden[teacher_layer].float()
        if equal_widths:
            require_equal_widths(ours, theirs, loss=loss)
        yield ours, theirs


def first_token_pairs(student: Outputs, teacher: Outputs, layers: str, *, loss: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first token's hidden states ``[B, D]``, of equal width, for each pair of layers trained now."""
    require_outputs("hidden", loss=loss, student=student, teacher=teacher)
    ours, theirs = (  # [B, L + 1, D]
        torch.stack([hidden[:, 0] for hidden in side.hidden], dim=1).float()
        if side.first is None
        else side.first.float()
        for side in (student, teacher)
    )
    require_equal_widths(ours, theirs, loss=loss)
    yield from ((ours[:, layer], theirs[:, other]) for layer, other in trained_pairs(student, teacher, layers))


def attention_pairs(student: Outputs, teacher: Outputs, layers: str, *, loss: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the attention scores ``[B, H, T, T]``, of equally many heads, for each pair of layers trained now.

    They are ``q k' / sqrt(d)``, before the softmax and without a mask. The bias of relative positions that MPNet adds
    is not included.
    """
    require_outputs("queries", loss=loss, student=student, teacher=teacher)
    for pair in trained_pairs(student, teacher, layers):
        ours, theirs = (
            scaled_products(side.queries[layer - 1], side.keys[layer - 1])
            for side, layer in zip((student, teacher), pair, strict=True)
        )
        require_equal_heads(ours, theirs, loss=loss)
        yield ours, theirs


def zero(student: Outputs) -> Tensor:
    """Return a zero ``[]`` float32 with a gradient of zeros."""
    return student.logits.float().sum() * 0


def scaled_products(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left right' / sqrt(d)`` for ``[B, H, T, d]``, in float32: ``[B, H, T, T]``."""
    return left.float() @ right.float().transpose(-1, -2) / math.sqrt(left.shape[-1])


def split_heads(vectors: Tensor, heads: int) -> Tensor:
    """Return ``[B, H, T, d]`` as ``[B, heads, T, H d / heads]``: the same vectors, cut into other heads.

    Raises:
        CompressError: the width does not divide by the number of heads.
    """
    joined = vectors.transpose(1, 2).flatten(2)
    width = joined.shape[-1]
    refuse(
        (heads < 1 or width % heads, f"a width of {width} does not divide into {heads} relation heads; choose another")
    )
    return joined.reshape(*joined.shape[:2], heads, -1).transpose(1, 2)


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


def require_outputs(what: str, *, loss: str, **sides: Outputs) -> None:
    """Refuse sides, ``student`` or ``teacher``, that have none of what a loss reads: ``hidden`` or ``queries``."""
    inside = "hidden states" if what == "hidden" else "attention heads that compress knows"
    for side, outputs in sides.items():
        lacks = not getattr(outputs, what) and (what != "hidden" or outputs.first is None)
        refuse((lacks, f"the loss {loss} compares {inside}, and this {side} has none; use logit-mse or kl"))


def require_equal_heads(student: Tensor, teacher: Tensor, *, loss: str) -> None:
    """Refuse ``[B, H, T, d]`` or ``[B, H, T, T]`` of different numbers of heads."""
    ours, theirs = student.shape[1], teacher.shape[1]
    refuse(
        (
            ours != theirs,
            f"the loss {loss} compares head by head, and the student has {ours} heads, the teacher {theirs}: give them "
            "equal numbers, or use the loss relations with relation_heads",
        )
    )


def require_equal_widths(student: Tensor, teacher: Tensor, *, loss: str) -> None:
    """Refuse ``[..., D]`` of different widths."""
    ours, theirs = student.shape[-1], teacher.shape[-1]
    refuse(
        (
            ours != theirs,
            f"the loss {loss} needs equal widths; the student has {ours} and the teacher {theirs}: leave hidden_size "
            "out of the recipe, or use hidden-mse, which learns a projection",
        )
    )


def width_projection(student: PreTrainedModel, teacher: PreTrainedModel, *, projected: bool = False) -> nn.Module:
    """Return a linear map from the student's hidden width to the teacher's; the identity where none is needed."""
    ours, theirs = student.config.hidden_size, teacher.config.hidden_size
    return nn.Linear(ours, theirs) if projected or ours != theirs else nn.Identity()


class VocabularyHead(nn.Module):
    """From hidden states ``[N, D]`` to logits over the vocabulary ``[N, V]``: BERT's head for masked tokens.

    Dense layer, nonlinearity, layer norm, then the product with the model's own input embeddings and a bias (Devlin et
    al. 2019, arXiv:1810.04805). The dense layer ends in the width of the embeddings, which a factorised model has
    smaller. The nonlinearity is the one that the model's family has in its head, so that the head can become that one.

    Args:
        model: whose embeddings are used. They stay the model's: the head neither saves nor moves them.
        frozen: the head's losses do not train these embeddings.
    """

    def __init__(self, model: PreTrainedModel, *, frozen: bool = False) -> None:
        super().__init__()
        config, embedding = model.config, input_embeddings(model)
        self.tied = (embedding,)  # in a tuple, a module is not registered as a submodule
        self.frozen = frozen
        self.dense = nn.Linear(config.hidden_size, embedding.embedding_dim)
        if self.dense.in_features == self.dense.out_features:
            # Layers add to their inputs, so that hidden states are close to the embeddings: a head learns faster from
            # the identity than from random numbers.
            nn.init.eye_(self.dense.weight)
        of_layers = getattr(config, "activation", None) or getattr(config, "hidden_act", "gelu")
        self.activation = nn.GELU() if stock_type(config) in GELU_HEADS else ACT2FN[of_layers]
        self.norm = nn.LayerNorm(embedding.embedding_dim, eps=getattr(config, "layer_norm_eps", 1e-12))
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    def forward(self, hidden: Tensor) -> Tensor:
        weight = self.tied[0].weight
        transformed = self.norm(self.activation(self.dense(hidden.float())))
        return nn.functional.linear(transformed, weight.detach() if self.frozen else weight, self.bias).float()


def masked_tokens(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the last hidden states ``[N, D]`` of masked tokens, and the original ids ``[N]``."""
    assert batch.targets is not None  # the phase masks
    chosen = batch.targets != NO_TARGET
    return outputs.hidden[-1][chosen], batch.targets[chosen]
