"""MobileBERT: deep and as wide as its teacher between layers, narrow inside them.

Sun et al. 2020, "MobileBERT: a Compact Task-Agnostic BERT for Resource-Limited Devices" (arXiv:2004.02984), section 3,
through transformers' own class: bottlenecks around each layer, four feed-forward networks stacked in it, short word
vectors of which three neighbours are read at once, factors in place of layer norms, and ReLU. Its feature maps are as
wide as the teacher's and its heads as many, so that both can be transferred layer by layer and head by head. The
authors' student was pre-trained at length; here the embeddings and the classification head start from the teacher and
everything between them at random. To start from their weights use the architecture checkpoint.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from transformers import MobileBertConfig, MobileBertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.errors import refuse
from compress.models.components import Embeddings, embeddings_of
from compress.training.architectures._initialization import (
    COUNTED_EXAMPLES,
    fill_head,
    free_depth,
    label_settings,
    leading_directions,
    require_layers,
    say_lost,
    token_vectors,
)

# Of the published shape: a bottleneck of 128 in a width of 512, and feed-forward networks four times as wide as that.
BOTTLENECK_SHARE = 4
FFN_FACTOR = 4


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    depth: int | float = 1.0,
    intra_bottleneck: int | None = None,
    embedding_size: int = 128,
) -> PreTrainedModel:
    """Return a MobileBERT of the teacher's width and heads, of which only the embeddings and the head are started.

    Args:
        examples: texts whose tokens decide which directions of the word vectors are kept.
        depth: number of layers, or with a decimal point a share of the teacher's.
        intra_bottleneck: width inside a layer, a multiple of the teacher's number of heads; by default about a quarter
            of the teacher's width, as published. The feed-forward networks are four times as wide.
        embedding_size: width of the word vectors; at most the teacher's.

    Raises:
        CompressError: a shape that this teacher cannot give.
    """
    require_layers(teacher, "mobilebert")
    heads, width = int(teacher.config.num_attention_heads), int(teacher.config.hidden_size)
    if intra_bottleneck is None:
        intra_bottleneck = heads * max(1, round(width / BOTTLENECK_SHARE / heads))
    refuse(
        (
            intra_bottleneck < 1 or intra_bottleneck % heads,
            f"intra_bottleneck = {intra_bottleneck} is not possible; give a multiple of the teacher's {heads} heads",
        )
    )
    embeddings = embeddings_of(teacher, narrow=embedding_size)
    student = MobileBertForSequenceClassification(
        MobileBertConfig(
            vocab_size=len(embeddings.words),
            embedding_size=embedding_size,
            hidden_size=width,
            num_hidden_layers=free_depth(teacher, depth),
            num_attention_heads=heads,
            intra_bottleneck_size=intra_bottleneck,
            intermediate_size=FFN_FACTOR * intra_bottleneck,
            max_position_embeddings=len(embeddings.positions),
            type_vocab_size=len(embeddings.segments),
            **label_settings(teacher),
        )
    )
    fill_head(teacher, student)
    texts = list(itertools.islice(examples, COUNTED_EXAMPLES))
    words, sums = (token_vectors(embeddings, tokenizer, texts, words_only=only) for only in (True, False))
    say_lost("word vectors", embedding_size, embeddings, _fill_embeddings(student, embeddings, words=words, sums=sums))
    return student


@torch.no_grad()
def _fill_embeddings(
    student: Any, embeddings: Embeddings, *, words: Iterable[torch.Tensor], sums: Iterable[torch.Tensor]
) -> float:
    """Start from the teacher's embeddings, with its norm at the average deviation; return the energy that is lost.

    The teacher normalises ``word + position + segment``; divided by the average deviation instead of each token's own,
    that is one matrix ``up`` for each of the three, and the student's factors start at one. Of the three words that are
    read at once the middle one starts from the teacher, its neighbours at nothing. The vector of padding is zero, so
    that a last word has the same neighbour in a padded text.
    """
    norm, projection = embeddings.norm, embeddings.projection
    deviation = torch.cat([part.std(dim=-1, correction=0) for part in sums])
    up = torch.diag(norm.weight) * (1 / deviation).mean()  # [D, E]
    bias = norm.bias
    if projection is not None:
        up, bias = projection.weight @ up, projection(bias)
    size = student.config.embedding_size
    kept = leading_directions(map(_centred, words), size)
    tables = student.mobilebert.embeddings
    tables.word_embeddings.weight.copy_(_centred(embeddings.words) @ kept.basis)
    tables.word_embeddings.weight[student.config.pad_token_id] = 0
    tables.position_embeddings.weight.copy_(_centred(embeddings.positions) @ up.T)
    tables.token_type_embeddings.weight.copy_(_centred(embeddings.segments) @ up.T)
    tables.embedding_transformation.weight.zero_()
    tables.embedding_transformation.weight[:, size : 2 * size] = up @ kept.basis
    tables.embedding_transformation.bias.copy_(bias)
    return kept.error


def _centred(vectors: torch.Tensor) -> torch.Tensor:
    return vectors - vectors.mean(dim=-1, keepdim=True)
