"""ALBERT: one layer used again and again, and word vectors of a small width that one matrix widens.

Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations" (arXiv:1909.11942),
sections 3.1 and 3.2. The paper trains it from scratch; here it starts from the teacher: the embeddings by a truncated
singular value decomposition, the shared layer by one of the teacher's or the mean of them. It saves size, not time:
each of the uses costs what a layer costs.
"""

from collections.abc import Iterable
from typing import Any

import torch
from transformers import AlbertConfig, AlbertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.models.components import Embeddings, activation, embeddings_of, ffn_width
from compress.training.architectures._initialization import (
    centred_basis,
    fill_head,
    fill_layer,
    free_depth,
    label_settings,
    leading_directions,
    own_layers,
    require_layers,
    say_lost,
    token_vectors,
)


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    embedding_size: int = 128,
    depth: int | float = 1.0,
) -> PreTrainedModel:
    """Return an untrained ALBERT of the teacher's width that starts from its weights, the layer from its middle one.

    With a teacher of one layer and at the full ``embedding_size`` its logits are the teacher's, save where ALBERT has
    other means: its head is tanh (DistilBERT's ReLU, ELECTRA's GELU), and it has no relative positions (MPNet).
    The config's ``embedding_error`` is the share of the energy of the corpus' embeddings that the smaller width loses.

    Args:
        examples: texts whose tokens decide which directions of the embeddings are kept.
        embedding_size: width of the word, position and segment vectors; at most the teacher's.
        depth: how often the layer is used, or with a decimal point a share of the teacher's layers.

    Raises:
        CompressError: a shape that this teacher cannot give.
    """
    require_layers(teacher, "albert")
    embeddings = embeddings_of(teacher, narrow=embedding_size)
    student = AlbertForSequenceClassification(
        AlbertConfig(
            vocab_size=len(embeddings.words),
            embedding_size=embedding_size,
            hidden_size=teacher.config.hidden_size,
            num_hidden_layers=free_depth(teacher, depth),
            num_attention_heads=teacher.config.num_attention_heads,
            intermediate_size=ffn_width(teacher),
            hidden_act=activation(teacher),
            max_position_embeddings=len(embeddings.positions),
            type_vocab_size=len(embeddings.segments),
            layer_norm_eps=embeddings.norm.eps,
            bos_token_id=None,
            eos_token_id=None,
            **label_settings(teacher),
        )
    )
    (middle,) = own_layers(teacher, [int(teacher.config.num_hidden_layers) // 2])
    fill_layer(teacher, middle, student, 0)
    fill_head(teacher, student)
    error = _fill_embeddings(student, embeddings, token_vectors(embeddings, tokenizer, examples))
    student.config.embedding_error = round(error, 6)
    say_lost("embeddings", embedding_size, embeddings, error)
    return student


@torch.no_grad()
def _fill_embeddings(student: Any, embeddings: Embeddings, vectors: Iterable[torch.Tensor]) -> float:
    """Fill the three tables, their norm and the matrix behind it; return the share of the energy that is lost.

    Both norms take the mean of a vector away and divide by its length. What is left in the teacher's E - 1 dimensions
    is written in the ``size - 1`` best of them, so that the student's norm does to the short vectors what the
    teacher's does to the long ones; the matrix turns them back, multiplies by the teacher's factors, and projects as
    the teacher does. On average a share ``1 - error`` of a vector's energy is left, for which its length is corrected.
    """
    width, size = embeddings.words.shape[1], student.config.embedding_size
    centred = centred_basis(width)
    kept = leading_directions((part.double() @ centred for part in vectors), size - 1)
    down = centred @ kept.basis.double()  # [E, size - 1]
    spread = centred_basis(size)  # [size, size - 1]
    tables = student.albert.embeddings
    for table, rows in (
        (tables.word_embeddings, embeddings.words),
        (tables.position_embeddings, embeddings.positions),
        (tables.token_type_embeddings, embeddings.segments),
    ):
        table.weight.copy_(rows.double() @ down @ spread.T)
    norm, projection = embeddings.norm, embeddings.projection
    length = (width * (1 - kept.error) / size) ** 0.5
    up = norm.weight.double()[:, None] * (down @ spread.T) * length  # [E, size]
    bias = norm.bias.double()
    if projection is not None:
        up = projection.weight.double() @ up
        bias = projection.weight.double() @ bias + projection.bias.double()
    student.albert.encoder.embedding_hidden_mapping_in.weight.copy_(up)
    student.albert.encoder.embedding_hidden_mapping_in.bias.copy_(bias)
    return kept.error
