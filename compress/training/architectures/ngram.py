"""A bag of the teacher's tokens and of hashed n-grams, and two layers: fewer operations than any network over tokens.

Ye et al. 2022, "Sparse Distillation: Speeding Up Text Classification by Using Bigger Student Models"
(arXiv:2110.08536). Tokens start from the teacher's embeddings, n-grams from zero.
"""

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.errors import CompressError
from compress.models.modeling.ngram import POOLING, NGramForSequenceClassification, multipliers
from compress.models.modeling.small import SmallModel
from compress.tasks import of_network
from compress.training.architectures._small import Common, build_small, tokenizer_size


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    embedding_size: int = 64,
    longest: int = 3,
    buckets: int = 100_000,
    pooling: str = "mean",
    dense_size: int = 100,
    dropout: float = 0.1,
    minimum_count: int = 2,
    pairs: str = "joined",
) -> SmallModel:
    """Return an untrained student (:func:`compress.training.architectures._small.build_small`).

    Args:
        longest: tokens of the longest n-gram; 1 for a bag of tokens.
        buckets: vectors that the n-grams of each length share.
        pooling: ``mean`` or ``sum`` over the text.
    """
    if of_network(teacher).by_word:
        raise CompressError("this teacher tags words, and a bag of n-grams has no words; use the student bilstm-tagger")
    if pooling not in POOLING:
        raise CompressError(f"pooling = {pooling!r} is not known; use {' or '.join(map(repr, POOLING))}")
    try:
        multipliers(tokenizer_size(tokenizer, teacher), longest)
    except ValueError as error:
        raise CompressError(f"longest = {longest} is not possible: {error}; give less") from None
    return build_small(
        NGramForSequenceClassification,
        NGramForSequenceClassification,
        teacher,
        tokenizer,
        examples,
        Common(embedding_size, dense_size, dropout, minimum_count, pairs),
        sizes={"longest": longest, "buckets": buckets},
        others={"pooling": pooling},
    )
