"""Replace words by their nearest neighbours among word vectors.

Jiao et al. 2020, "TinyBERT" (arXiv:1909.10351), section 3.2, the rule for words of several subword tokens, here for all
words: each is replaced with ``probability`` by one of the ``candidates`` words whose vectors are nearest by cosine.
Stop words, numbers and punctuation stay. The paper takes GloVe vectors, which the option ``vectors`` reads. By default
the vectors are the teacher's own input embeddings: the neighbours are its words of one subword token, and a word of
several tokens has the mean of their embeddings.
"""

from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

from compress.data import Example
from compress.models.model_dir import Model
from compress.training.augmenters._common import (
    check_rewording,
    embedding_neighbours,
    file_neighbours,
    reword,
    vary_sides,
)
from compress.training.training_data import Variation


def augmenter(
    teacher: Model,
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
    neighbours = (
        file_neighbours(vectors, count=candidates)
        if vectors
        else embedding_neighbours(teacher.load(), tokenizer, count=candidates)
    )
    return lambda example, generator: vary_sides(
        example,
        generator,
        lambda text: reword(text, generator, probability, lambda _, words: [neighbours(word.text) for word in words]),
    )
