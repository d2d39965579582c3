"""Cluster bootstrap for tagging: whole sentences are resampled, as the words of one are not independent. W words.

Resampling words would take every sentence for as much evidence as it has words, and give intervals that are too narrow.
Source: Field and Welsh 2007, "Bootstrapping clustered data" (the cluster bootstrap, section 2.1).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compress.errors import CompressError

Array = NDArray[Any]

CONFIDENCE = 0.95
RESAMPLES = 2000
BATCH_VALUES = 4_000_000  # some 32 MB


def sentence_bootstrap(
    samples: tuple[Array, ...], statistic: Callable[..., Array], sentences: Array, *, seed: int = 0
) -> tuple[float, float]:
    """Return the 95% percentile interval of a statistic of columns ``[W]`` over resamples of whole sentences.

    Args:
        sentences: the number of the sentence of every word, ``[W]``.

    Raises:
        CompressError: there are fewer than two sentences.
    """
    order = np.argsort(sentences, kind="stable")
    _, sizes = _of_sentences(sentences)
    starts = np.cumsum(sizes) - sizes
    drawn_values = []
    for drawn in _draws(len(sizes), seed):
        for chosen in drawn:
            lengths = sizes[chosen]
            ends = np.cumsum(lengths)
            rows = order[np.arange(ends[-1]) + np.repeat(starts[chosen] - ends + lengths, lengths)]
            drawn_values.append(float(statistic(*(column[rows] for column in samples))))
    return percentiles(np.array(drawn_values))


def sentence_mean_interval(values: Array, sentences: Array, *, seed: int = 0) -> tuple[float, float]:
    """Return what :func:`sentence_bootstrap` gives for the mean of one column, from the sums of its sentences."""
    inverse, sizes = _of_sentences(sentences)
    sums = np.bincount(inverse, weights=np.asarray(values, dtype=float))
    means = [sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1) for drawn in _draws(len(sizes), seed)]
    return percentiles(np.concatenate(means))


def sentence_weights(sentences: Array, generator: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Yield how often each word counts, ``[W]``, in one resample of whole sentences after the other; their sum is W."""
    inverse, sizes = _of_sentences(sentences)
    while True:
        times = np.bincount(generator.integers(0, len(sizes), len(sizes)), minlength=len(sizes))
        weights = times[inverse].astype(np.float64)
        yield weights * (len(weights) / weights.sum())


def _of_sentences(sentences: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the position of every word's sentence, ``[W]``, and the words of every sentence, ``[S]``."""
    _, inverse, sizes = np.unique(sentences, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise CompressError("words of one sentence have no interval; give two labelled sentences or more")
    return inverse, sizes


def _draws(count: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield resamples ``[R, S]`` of sentence numbers, as many at a time as memory allows."""
    generator = np.random.default_rng(seed)
    for size in batches(count):
        yield generator.integers(0, count, (size, count))


def batches(row_values: int) -> list[int]:
    """Return how many resamples, of so many values each, are drawn at a time."""
    size = max(1, BATCH_VALUES // row_values)
    return [min(size, RESAMPLES - start) for start in range(0, RESAMPLES, size)]


def percentiles(values: Array) -> tuple[float, float]:
    """Return the 95% percentile interval of resampled values."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
