"""Statistics of latency samples: percentiles, throughput, speed-ups with intervals, noise.

Samples are milliseconds, one list a round and one value a batch: R rounds x S batches. A round gives every model the
same batches within the same short time, so that what disturbs the machine disturbs all of them alike and cancels in
their ratio; the ratios of the rounds then say how sure the speed-up is.
"""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compress.evaluation.metrics import bootstrap

Rounds = Sequence[Sequence[float]]

PERCENTILES = (50, 90, 95, 99)
# Above these a host is too noisy for a speed to decide anything; see is_noisy.
NOISE_LIMIT = 0.10
INTERVAL_LIMIT = 1.25
STABLE_WITHIN = 0.05
STABLE_WINDOW = 5
# Two processes of the same model differ by about 0.5% for as long as they live (standard deviation over ten pairs of
# MiniLM), by where their memory came to lie. Rounds cannot see this; 1.96 times as much is added to every interval.
PROCESS_SPREAD = 0.01


class Interval(NamedTuple):
    """A figure, such as a speed-up (2.0 is twice as fast), with its 95% interval."""

    value: float
    low: float
    high: float


def speedup(reference_ms: Rounds, model_ms: Rounds, *, seed: int = 0) -> Interval:
    """Return how many times faster the model is: the median over rounds of reference / model.

    The interval is that of the bootstrap over rounds, which are what repeats independently (the batches of a round
    share its disturbance), widened by what two processes of the same model differ. Where one of the two was given only
    the first batches of a round, these alone count of the other.

    Raises:
        ValueError: the two were not measured in the same two or more rounds.
    """
    if len(reference_ms) != len(model_ms) or len(reference_ms) < 2:
        raise ValueError(f"a ratio needs the same rounds, got {len(reference_ms)} and {len(model_ms)}")
    shared = [min(map(len, pair)) for pair in zip(reference_ms, model_ms, strict=True)]
    reference, model = (
        np.array([np.median(samples[:count]) for samples, count in zip(rounds, shared, strict=True)])
        for rounds in (reference_ms, model_ms)
    )
    ratios = reference / model
    low, high = bootstrap((ratios,), lambda drawn: np.median(drawn, axis=-1), seed=seed)
    value = float(np.median(ratios))
    return Interval(
        value,
        value * math.exp(-math.hypot(math.log(value / low), PROCESS_SPREAD)),
        value * math.exp(math.hypot(math.log(high / value), PROCESS_SPREAD)),
    )


def latency_percentiles(rounds: Rounds) -> dict[int, float]:
    """Return the percentiles 50, 90, 95 and 99 of all samples, in milliseconds."""
    samples = np.concatenate([np.asarray(samples, dtype=float) for samples in rounds])
    return {p: float(np.percentile(samples, p)) for p in PERCENTILES}


def percentile_interval(rounds: Rounds, percentile: int, *, seed: int = 0) -> tuple[float, float]:
    """Return the 95% interval of a percentile of all samples, in milliseconds: bootstrap over whole rounds.

    A slow minute makes many samples of one round slow, so that single samples are no independent draws.

    Raises:
        ValueError: rounds of different lengths, or fewer than two.
    """
    samples = np.array(rounds, dtype=float)

    def statistic(drawn: np.ndarray) -> np.ndarray:
        chosen = samples[drawn.astype(int)].reshape(*drawn.shape[:-1], -1)
        return np.asarray(np.percentile(chosen, percentile, axis=-1))

    return bootstrap((np.arange(len(samples)),), statistic, seed=seed)


def units_per_second(rounds: Rounds, amounts: Sequence[float]) -> float:
    """Return how much is done in a second: the median over rounds of a round's amount by all its time."""
    return float(np.median([1000 * amount / sum(ms) for amount, ms in zip(amounts, rounds, strict=True)]))


def throughput(rounds: Rounds, batch_size: int) -> float:
    """Return rows per second; see :func:`units_per_second`."""
    return units_per_second(rounds, [batch_size * len(samples) for samples in rounds])


def noise(probe_ms: Sequence[float]) -> float:
    """Return the relative spread of one batch timed again in every round: 0.02 is 2%.

    It is the median absolute deviation, scaled to a standard deviation, over the median.
    """
    samples = np.asarray(probe_ms, dtype=float)
    middle = np.median(samples)
    return float(1.4826 * np.median(np.abs(samples - middle)) / middle)


def is_noisy(ratio: Interval, *noises: float) -> bool:
    """Tell whether a host was too noisy for a speed-up to decide anything.

    It was if the probe of either side spread by more than 10%, so that the latencies themselves say little; or if the
    interval of the speed-up spans more than a factor of 1.25, so that its first digits are not known.
    """
    return max(noises, default=0.0) > NOISE_LIMIT or ratio.high > INTERVAL_LIMIT * ratio.low


def is_stable(samples_ms: Sequence[float]) -> bool:
    """Tell whether warm-up is over: the last five samples are no more than 5% faster than the five before."""
    if len(samples_ms) < 2 * STABLE_WINDOW:
        return False
    before = np.median(samples_ms[-2 * STABLE_WINDOW : -STABLE_WINDOW])
    return bool(np.median(samples_ms[-STABLE_WINDOW:]) > (1 - STABLE_WITHIN) * before)


def draw_batches(generator: random.Random, rows: int, batch_size: int, batches: int) -> list[list[int]]:
    """Draw rows for ``batches`` batches; a set smaller than a batch is repeated to fill it."""
    whole, rest = divmod(batch_size, rows)
    return [list(range(rows)) * whole + generator.sample(range(rows), rest) for _ in range(batches)]


def batches_per_round(batch_size: int) -> int:
    """Return how many batches of a size make one turn: many single rows, few large batches."""
    return max(4, 20 // batch_size)
