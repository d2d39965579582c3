"""Convolutions of several widths with the teacher's own embeddings, cut to the corpus and to a smaller width.

Kim 2014, "Convolutional Neural Networks for Sentence Classification" (arXiv:1408.5882), distilled as by Chia et al.
2019, "Transformer to CNN: Label-scarce distillation for efficient text classification" (arXiv:1909.03508). The first
layer is linear in the embeddings: its export is one lookup and an addition for each place of a window.
"""

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.errors import refuse
from compress.models.networks.build_small import build_small
from compress.models.networks.cnn.model import POOLING
from compress.models.networks.small import SmallModel


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    embedding_size: int = 300,
    widths: tuple[int, ...] = (1, 2, 3, 4),
    filters: int = 100,
    second_filters: int = 0,
    second_width: int = 3,
    pooling: str = "max",
    dense_size: int = 200,
    dropout: float = 0.1,
    minimum_count: int = 2,
    pairs: str = "joined",
) -> SmallModel:
    """Return an untrained student (:func:`compress.models.networks.build_small.build_small`).

    Args:
        widths: how many tokens the windows of the first layer have, with ``filters`` of each.
        second_filters: filters of a second layer, over ``second_width`` places of the first; 0 for none.
        pooling: over the tokens of a text: ``max``, or ``max-mean`` for both side by side.
    """
    refuse(
        (
            not widths or min(widths) < 1 or len(set(widths)) < len(widths),
            f"widths = {list(widths)} is not possible; give different ones, each 1 or more",
        )
    )
    return build_small(
        "cnn",
        teacher,
        tokenizer,
        examples,
        {"filters": 1, "second_filters": 0, "second_width": 1, "pooling": POOLING},
        embedding_size=embedding_size,
        dense_size=dense_size,
        dropout=dropout,
        minimum_count=minimum_count,
        pairs=pairs,
        widths=list(widths),
        filters=filters,
        second_filters=second_filters,
        second_width=second_width,
        pooling=pooling,
    )
