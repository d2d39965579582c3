"""Bootstrap interval of a difference over several seeds and data sets. S seeds, N rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compress.evaluation.cluster_bootstrap import RESAMPLES, Array, batches, percentiles
from compress.evaluation.metrics import Metric


@dataclass(frozen=True)
class SeedSample:
    """What the seeds of a recipe said about one data set, and what they are compared with.

    ``predicted`` and ``reference`` are ``[S, N]``, one row a seed; ``gold`` is ``[N]``.
    """

    predicted: Array
    reference: Array
    gold: Array
    metric: Metric
    classes: int


def difference_interval(sets: Sequence[SeedSample], *, seed: int = 0) -> tuple[float, float]:
    """Return the 95% interval, in points, of the macro mean of differences over seeds and data sets.

    Seeds and rows are crossed, since all seeds answer the same rows. Both are resampled, each for itself (Owen, 2007,
    "The pigeonhole bootstrap"; a little cautious by design). Resampling S seeds shows (S - 1) / S of their variance, so
    what they add is stretched by sqrt(S / (S - 1)) (Rao and Wu, 1988, "Resampling inference with complex survey data").
    Data sets are never exchanged for others: the interval speaks of these sets only.

    For accuracy, each set is given one row more that all seeds win and one that all lose, as the interval of Bonett and
    Price (2012) has it, so that models which never differ are not certainly equal.

    Simulated with 3 and 5 seeds, it holds the truth in 93% to 98% of worlds, but in 84% to 90% where 2 or 3 seeds
    differ by more than rows make a difference vary: so few say little about their own spread.
    """
    drawn = np.mean([_drawn(columns, seed + index) for index, columns in enumerate(sets)], axis=0)
    return percentiles(drawn)


def _drawn(columns: SeedSample, seed: int) -> Array:
    """Return the mean difference over seeds, in points, of every resample of rows and seeds, ``[RESAMPLES]``."""
    generator = np.random.default_rng(seed)
    per_seed = 100 * _resampled_rows(columns, generator)
    seeds = per_seed.shape[1]
    middle = per_seed.mean(axis=1)
    if seeds == 1:
        return np.asarray(middle)
    chosen = generator.integers(0, seeds, per_seed.shape)
    redrawn = np.take_along_axis(per_seed, chosen, axis=1).mean(axis=1)
    return np.asarray(middle + (redrawn - middle) * np.sqrt(seeds / (seeds - 1)))


def _resampled_rows(columns: SeedSample, generator: np.random.Generator) -> Array:
    """Return the difference of every seed in every resample of rows, ``[RESAMPLES, S]``, as fractions."""
    if columns.metric.name == "accuracy":
        return _resampled_changes(columns, generator)
    seeds, rows = columns.predicted.shape
    drawn = [_differences(columns, generator.integers(0, rows, (count, rows))) for count in batches(rows * seeds)]
    return np.concatenate(drawn, axis=1).T


def _resampled_changes(columns: SeedSample, generator: np.random.Generator) -> Array:
    """Draw how often each pattern of seeds won and lost comes, which is all of a resample that accuracy depends on."""
    change = (columns.predicted == columns.gold).astype(int) - (columns.reference == columns.gold)
    ones = np.ones((len(change), 1), int)
    patterns, times = np.unique(np.hstack([change, ones, -ones]), axis=1, return_counts=True)
    drawn = generator.multinomial(times.sum(), times / times.sum(), RESAMPLES)
    return np.asarray(drawn @ patterns.T / times.sum())


def _differences(columns: SeedSample, rows: Array) -> Array:
    """Return the difference of every seed on rows ``[R, N]``, ``[S, R]``."""
    gold, statistic, classes = columns.gold[rows], columns.metric.statistic, columns.classes
    pairs = zip(columns.predicted, columns.reference, strict=True)
    return np.array([statistic(p[rows], gold, classes) - statistic(r[rows], gold, classes) for p, r in pairs])
