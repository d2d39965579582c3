"""Replace words by their nearest neighbours among word vectors.

Jiao et al. 2020, "TinyBERT" (arXiv:1909.10351), section 3.2, the rule for words of several subword tokens, here for all
words:
each is replaced with ``probability`` by one of the ``candidates`` words whose vectors are nearest by cosine. Stop words
and what is not made of letters stay. The paper takes GloVe vectors, which the option ``vectors`` reads; by default the
vectors are the teacher's own input embeddings, the neighbours its words of one piece, and the mean of the pieces'
embeddings stands for a word of several.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from compress.training.augmentation import Variation, vary_sides
from compress.training.augmenters._word_replacement import (
    check_rewording,
    embedding_neighbours,
    file_neighbours,
    reword,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from compress.data import Example
    from compress.models.model_dir import ModelDir


def augmenter(
    teacher: ModelDir,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Iterable[Example],
    *,
    candidates: int = 15,
    probability: float = 0.4,
    vectors: str = "",
) -> Variation:
    """Return the function that varies an example; the corpus is not read.

    Args:
        vectors: a file of word vectors in GloVe's text format, of which the first 100,000 are read.
    """
    check_rewording(candidates, probability)
    if vectors:
        neighbours = file_neighbours(vectors, count=candidates)
    else:
        neighbours = embedding_neighbours(teacher.load(), tokenizer, count=candidates)
    return lambda example, generator: vary_sides(
        example,
        generator,
        lambda text: reword(text, generator, probability, lambda _, words: [neighbours(word.text) for word in words]),
    )
