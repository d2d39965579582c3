"""Word alignment for tagging: a word has the logits of its first subword token. B sentences, T tokens, W words.

The first token stands for the word (Devlin et al. 2019, arXiv:1810.04805, section 5.3). A word has no prediction where
truncation removed it or the tokenizer has no token for its characters: metrics count it as wrong, and neither training
nor checkpoint selection uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compress.errors import CompressError

if TYPE_CHECKING:
    from compress.data.examples import Example


NO_ANSWER = -1  # prediction of a word without logits


def first_tokens(words: Sequence[int | None]) -> list[int]:
    """Return for every token the number of the word that starts there, counted from 1; 0 where none does.

    Args:
        words: for every token the word that it is of, counted from 0; None for special tokens.
    """
    starts, before = [], None
    for word in words:
        starts.append(word + 1 if word is not None and word != before else 0)
        before = word
    return starts


def at_words(logits: np.ndarray, starts: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the logits of every word, ``[W, C]``; NaN for a word that has none.

    Args:
        logits: ``[B, T, C]``.
        starts: ``[B, T]``, as :func:`first_tokens` gives it.
        counts: words of each sentence.

    Raises:
        CompressError: logits that are not finite.
    """
    found = np.full((sum(counts), logits.shape[-1]), np.nan, dtype=np.float32)
    before = np.cumsum([0, *counts[:-1]])
    row, token = np.nonzero(starts)
    answers = logits[row, token]
    if not np.isfinite(answers).all():
        raise CompressError("the model gave logits that are not finite numbers; its weights are damaged")
    found[before[row] + starts[row, token] - 1] = answers
    return found


def word_counts(examples: Iterable[Example]) -> list[int]:
    """Return the number of words of each sentence."""
    return [len(example.words) for example in examples]


def by_sentence(values: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Cut ``[W, ...]`` into one array for each sentence."""
    return np.split(values, np.cumsum(counts)[:-1])


def one_column(gold: Sequence[Any]) -> np.ndarray:
    """Return gold labels as metrics read them: ``[N]``, or for tagging ``[W]``, those of all sentences in order."""
    nested = bool(len(gold)) and isinstance(gold[0], list)
    return np.array([tag for tags in gold for tag in tags] if nested else gold)
