"""Statistics of latency samples: speed-ups, percentiles and throughput, each with its 95% interval.

Samples are milliseconds, one list a round and one value a batch: R rounds x S batches. A round gives every model the
same batches, and column s always holds rows of about the same length. A speed-up is the median over rounds of the ratio
for each column, whose two sides were measured shortly after each other, and of these the geometric mean over columns.
Percentiles are those of all samples, disturbances included: what was observed on this host at that time.

Every interval is the estimate times or divided by one factor: the bootstrap's standard error of its logarithm over
rounds, which are what repeats independently (the batches of a round share its disturbance), times Student's quantile
for so many rounds, because a bootstrap of few rounds alone is too narrow. That of a speed-up is widened by what two
processes of one model differ. ``benchmarks/speed/estimators.py`` compares this estimator with others on busy machines.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from compress.evaluation.metrics import CONFIDENCE

Rounds = Sequence[Sequence[float]]

PERCENTILES = (50, 90, 95, 99)
STABLE_WITHIN = 0.05
STABLE_WINDOW = 5
# Two processes of the same model differ by about 1% for as long as they live, by where their memory came to lie: in
# benchmarks/results/estimators.jsonl the logarithms of their ratios after 72 rounds have standard deviations of 0.7 to
# 1.6%. Rounds cannot see this; 1.96 times 1% is added to every speed-up's interval, as the errors are, in squares.
PROCESS_SPREAD = 0.02
DRAWS = 400
GOLDEN_RATIO = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly (Weyl's sequence)


class Interval(NamedTuple):
    """A figure, such as a speed-up (2.0 is twice as fast), with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """By what share the upper bound is above the value: 0.05 is 5%."""
        return self.high / self.value - 1


def speedup(reference_ms: Rounds, model_ms: Rounds, *, seed: int = 0, of_means: bool = False) -> Interval:
    """Return how many times faster the model is than the reference.

    Where one of the two was given only the first batches of a round, or only the first rounds, these alone count of the
    other. The interval is widened by what two processes of the same model differ. ``of_means`` divides the mean times
    of all batches instead: of a model whose time depends on the text, which has no typical ratio.

    Raises:
        ValueError: the two share no two rounds.
    """
    rounds = min(len(reference_ms), len(model_ms))
    if rounds < 2:
        raise ValueError(f"a ratio needs two rounds, got {len(reference_ms)} and {len(model_ms)}")
    shared = min(map(len, (*reference_ms[:rounds], *model_ms[:rounds])))
    reference, model = (np.array([samples[:shared] for samples in side[:rounds]]) for side in (reference_ms, model_ms))
    logs = np.log(reference / model)

    def ratio(drawn: np.ndarray) -> np.ndarray:
        if of_means:
            return np.asarray(reference[drawn].sum(axis=(-2, -1)) / model[drawn].sum(axis=(-2, -1)))
        return np.asarray(np.exp(np.median(logs[drawn], axis=-2).mean(axis=-1)))

    return bootstrap_interval(ratio, rounds, seed, widened_by=PROCESS_SPREAD)


def divided(one: Interval, other: Interval) -> Interval:
    """Return the ratio of two speed-ups of separate rounds: their logarithms have independent errors.

    Raises:
        ValueError, ZeroDivisionError: a bound is not positive.
    """
    ratio = one.value / other.value
    factor = math.exp(math.hypot(*(math.log(side.high / side.low) / 2 for side in (one, other))))
    return Interval(ratio, ratio / factor, ratio * factor)


def percentile(rounds: Rounds, rank: int, *, seed: int = 0) -> Interval:
    """Return a percentile of all samples, in milliseconds.

    Raises:
        ValueError: rounds of different lengths, or fewer than two.
    """
    samples = np.array(rounds, dtype=float)

    def statistic(drawn: np.ndarray) -> np.ndarray:
        return np.asarray(np.percentile(samples[drawn].reshape(*drawn.shape[:-1], -1), rank, axis=-1))

    return bootstrap_interval(statistic, len(samples), seed)


def mean(rounds: Rounds, *, seed: int = 0) -> Interval:
    """Return the mean of all samples, in milliseconds; rounds are of one length."""
    means = np.array(rounds, dtype=float).mean(axis=1)
    return bootstrap_interval(lambda drawn: means[drawn].mean(axis=-1), len(means), seed)


def units_per_second(rounds: Rounds, amounts: Sequence[float], *, seed: int = 0) -> Interval:
    """Return how much is done in a second: the median over rounds of a round's amount by all its time."""
    rates = np.array([1000 * amount / sum(samples) for amount, samples in zip(amounts, rounds, strict=True)])
    return bootstrap_interval(lambda drawn: np.median(rates[drawn], axis=-1), len(rates), seed)


def throughput(rounds: Rounds, batch_size: int, *, seed: int = 0) -> Interval:
    """Return rows per second; see :func:`units_per_second`."""
    return units_per_second(rounds, [batch_size * len(samples) for samples in rounds], seed=seed)


def noise(rounds: Rounds) -> float:
    """Return the relative spread over rounds of batches of about the same length: 0.02 is 2%.

    It is the median absolute deviation from each column's median, scaled to a standard deviation.
    """
    samples = np.array(rounds, dtype=float)
    return float(1.4826 * np.median(np.abs(samples / np.median(samples, axis=0) - 1)))


def is_stable(samples_ms: Sequence[float]) -> bool:
    """Tell whether warm-up is over: the last samples, five at most, are hardly faster than as many before them."""
    window = min(STABLE_WINDOW, len(samples_ms) // 2)
    if not window:
        return False
    return bool(np.median(samples_ms[-window:]) > (1 - STABLE_WITHIN) * np.median(samples_ms[-2 * window : -window]))


def by_length(lengths: Sequence[int], generator: random.Random) -> list[int]:
    """Return rows by rising length, in a random order where they are as long."""
    return sorted(range(len(lengths)), key=lambda row: (lengths[row], generator.random()))


def draw_batches(ordered: Sequence[int], batch_size: int, generator: random.Random) -> list[list[int]]:
    """Draw the batches of a round: a row of each of as many parts of all rows, which are ordered by length.

    The same place always has rows of the same part, and the parts follow each other so that those of every batch, and
    of the first few batches, are spread over all lengths. A set smaller than what is wanted is repeated.
    """
    wanted = batch_size * batches_per_round(batch_size)
    parts = sorted(range(wanted), key=lambda part: part * GOLDEN_RATIO % 1)
    rows = [ordered[int((part + generator.random()) / wanted * len(ordered))] for part in parts]
    return [rows[start : start + batch_size] for start in range(0, wanted, batch_size)]


def batches_per_round(batch_size: int) -> int:
    """Return how many batches of a size make one round: many single rows, few large batches."""
    return max(2, 20 // batch_size)


def bootstrap_interval(
    statistic: Callable[[np.ndarray], np.ndarray], rounds: int, seed: int, widened_by: float = 0.0
) -> Interval:
    """Return a positive statistic of rounds ``[..., R]``, given by their numbers, with its interval.

    Raises:
        ValueError: fewer than two rounds.
    """
    from scipy import stats

    if rounds < 2:
        raise ValueError(f"an interval needs two rounds, got {rounds}")
    value = float(statistic(np.arange(rounds)))
    drawn = statistic(np.random.default_rng(seed).integers(0, rounds, (DRAWS, rounds)))
    error = float(np.std(np.log(drawn))) * float(stats.t.ppf((1 + CONFIDENCE) / 2, rounds - 1))
    factor = math.exp(math.hypot(error, widened_by))
    return Interval(value, value / factor, value * factor)
