"""Convolutions of several widths with the teacher's own embeddings, cut to the corpus and to a smaller width.

Kim 2014, "Convolutional Neural Networks for Sentence Classification" (arXiv:1408.5882), distilled as by Chia et al.
2019, "Transformer to CNN: Label-scarce distillation for efficient text classification" (arXiv:1909.03508). The first
layer is linear in the embeddings: its export is one lookup and an addition for each place of a window.
"""

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.errors import CompressError
from compress.models.modeling.cnn import POOLING, CNNForSequenceClassification, CNNForTokenClassification
from compress.models.modeling.small import SmallModel
from compress.training.architectures._small import Common, build_small


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
    """Return an untrained student (:func:`compress.training.architectures._small.build_small`).

    Args:
        widths: how many tokens the windows of the first layer have, with ``filters`` of each.
        second_filters: filters of a second layer, over ``second_width`` places of the first; 0 for none.
        pooling: over the tokens of a text: ``max``, or ``max-mean`` for both side by side.
    """
    if not widths or min(widths) < 1 or len(set(widths)) < len(widths):
        raise CompressError(f"widths = {list(widths)} is not possible; give different ones, each 1 or more")
    if second_filters < 0:
        raise CompressError(f"second_filters = {second_filters} is not possible; give 0 or more")
    if pooling not in POOLING:
        raise CompressError(f"pooling = {pooling!r} is not known; use {' or '.join(map(repr, POOLING))}")
    return build_small(
        CNNForSequenceClassification,
        CNNForTokenClassification,
        teacher,
        tokenizer,
        examples,
        Common(embedding_size, dense_size, dropout, minimum_count, pairs),
        sizes={"filters": filters, "second_width": second_width},
        others={"widths": list(widths), "second_filters": second_filters, "pooling": pooling},
    )
