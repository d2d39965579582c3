"""DistilBERT: layers of the teacher, without its pooler and its segments.

Sanh et al. 2019, "DistilBERT, a distilled version of BERT" (arXiv:1910.01108), section 3, through transformers' own
class. The vector of the first segment, which every token of a single text has, is added to each position's, so that the
hidden states of a copy of all layers are the teacher's on single texts; the second text of a pair is read as the first.
"""

from collections.abc import Iterable

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.errors import refuse
from compress.models.components import activation, embeddings_of, ffn_width
from compress.training.architectures._initialization import (
    choose_layers,
    fill_head,
    fill_layer,
    label_settings,
    require_layers,
)


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    depth: int | float = 0.5,
    start: str = "spread",
) -> PreTrainedModel:
    """Return an untrained DistilBERT of the teacher's width that starts from its weights.

    The layer before the classifier starts from the teacher's pooler, but DistilBERT's nonlinearity is ReLU where BERT's
    is tanh: what the pooler says with negative numbers is lost until the student has learned to say it otherwise.
    MPNet's relative positions have no place here and are left out.

    Args:
        depth: number of layers, or with a decimal point a share of the teacher's.
        start: ``spread`` from the first to the last layer (the paper's every other one), ``blocks`` the last of equal
            blocks, ``first`` the lowest.

    Raises:
        CompressError: a depth or a layer that the teacher does not have, or embeddings that are widened by a matrix.
    """
    require_layers(teacher, "distilbert")
    chosen = choose_layers(int(teacher.config.num_hidden_layers), depth, start)
    embeddings = embeddings_of(teacher)
    refuse(
        (
            embeddings.projection,
            f"a distilbert student cannot start from this {teacher.config.model_type!r} teacher, whose embeddings of "
            f"width {embeddings.words.shape[1]} are widened by a matrix that DistilBERT does not have; use the student "
            "transformer or albert",
        )
    )
    student = DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=len(embeddings.words),
            dim=teacher.config.hidden_size,
            n_layers=len(chosen),
            n_heads=teacher.config.num_attention_heads,
            hidden_dim=ffn_width(teacher),
            activation=activation(teacher),
            max_position_embeddings=len(embeddings.positions),
            bos_token_id=None,
            eos_token_id=None,
            **label_settings(teacher),
        )
    )
    tables = student.distilbert.embeddings
    with torch.no_grad():
        tables.word_embeddings.weight.copy_(embeddings.words)
        tables.position_embeddings.weight.copy_(embeddings.positions + embeddings.segments[0])
    tables.LayerNorm.load_state_dict(embeddings.norm.state_dict())
    for index, layer in enumerate(chosen):
        fill_layer(teacher, layer, student, index)
    fill_head(teacher, student)
    return student
