"""A bag of the teacher's tokens and of hashed n-grams, and two layers: fewer operations than any network over tokens.

Ye et al. 2022, "Sparse Distillation: Speeding Up Text Classification by Using Bigger Student Models"
(arXiv:2110.08536). Tokens start from the teacher's embeddings, n-grams from zero.
"""

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.errors import CompressError, refuse
from compress.models.networks.build_small import build_small, tokenizer_size
from compress.models.networks.ngram.model import POOLING, multipliers
from compress.models.networks.small import SmallModel
from compress.tasks import of_network


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
    """Return an untrained student (:func:`compress.models.networks.build_small.build_small`).

    Args:
        longest: tokens of the longest n-gram; 1 for a bag of tokens.
        buckets: vectors that the n-grams of each length share.
        pooling: ``mean`` or ``sum`` over the text.
    """
    refuse(
        (
            of_network(teacher).by_word,
            "this teacher tags words, and a bag of n-grams has no words; use the student bilstm-tagger",
        )
    )
    try:
        multipliers(tokenizer_size(tokenizer, teacher), longest)
    except ValueError as error:
        raise CompressError(f"longest = {longest} is not possible: {error}; give less") from None
    return build_small(
        "ngram",
        teacher,
        tokenizer,
        examples,
        {"longest": 1, "buckets": 1, "pooling": POOLING},
        embedding_size=embedding_size,
        dense_size=dense_size,
        dropout=dropout,
        minimum_count=minimum_count,
        pairs=pairs,
        longest=longest,
        buckets=buckets,
        pooling=pooling,
    )
