"""What the benchmark runs: two functions, one from texts to inputs and one from inputs to logits.

A runtime does not know this: it opens a model directory and returns a function of token ids, and
:class:`compress.inference.token_runner.TokenRunner` tokenises. Baselines and competitors have inputs of their own, such
as words, or do both in one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compress.data.examples import Example
from compress.data.tokenization import by_sentence
from compress.errors import CompressError


@dataclass
class Runner:
    """A model that is ready to run.

    Args:
        prepare: turns B texts or pairs into whatever ``run`` takes.
        run: returns logits ``[B, C]``, or log-probabilities, or scores ``[B, 1]`` for regression. Of a tagger there is
            a row for every word of the B sentences, ``[W, C]``, not a number where it has no answer.
        parameters: the number of its weights.
        tokenizer_inside: whether ``prepare`` does next to nothing because ``run`` takes texts.
    """

    prepare: Callable[[Sequence[Example]], Any]
    run: Callable[[Any], np.ndarray]
    parameters: int
    tokenizer_inside: bool = False


def run_by_length(
    lengths: Sequence[int],
    run: Callable[[list[int]], np.ndarray],
    batch_rows: int,
    words: Sequence[int] | None = None,
) -> np.ndarray:
    """Return logits ``[N, C]`` float32 in the order of the rows; rows of similar length share a batch.

    Args:
        lengths: the size of each row, by which rows are sorted.
        run: returns the logits of the rows of these numbers.
        batch_rows: rows of a batch.
        words: for tagging, the words of each row; N then counts words.

    Raises:
        CompressError: there is no row, or logits are not finite. A word without an answer has no numbers
            (:mod:`compress.data.tokenization`), so that ``run`` checks those of words itself.
    """
    if not lengths:
        raise CompressError("there are no rows to predict; give one or more")
    if len(lengths) <= batch_rows:  # of a request there is nothing to sort
        return _finite(run(list(range(len(lengths)))).astype(np.float32, copy=False), words)
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    batches = [order[start : start + batch_rows] for start in range(0, len(order), batch_rows)]
    logits = np.concatenate([run(batch) for batch in batches]).astype(np.float32, copy=False)
    places = np.argsort(order)
    if words is not None:
        of_rows = by_sentence(logits, [words[row] for row in order])
        return np.concatenate([of_rows[place] for place in places])
    return _finite(logits, words)[places]


def _finite(logits: np.ndarray, words: Sequence[int] | None) -> np.ndarray:
    """Return logits, refused if some are no numbers; for tagging, ``run`` has checked those that are answers."""
    if words is None and not np.isfinite(logits).all():
        raise CompressError("the model gave logits that are not finite numbers; its weights are damaged")
    return logits
