"""The statistics of speed on synthetic samples whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from compress.inference import speedup_intervals
from compress.inference.speedup_intervals import Interval

Weather = Callable[[np.random.Generator, int], np.ndarray]


def rounds(
    generator: np.random.Generator, disturbance: np.ndarray, factor: float = 1.0, batches: int = 20
) -> list[list[float]]:
    """Batches of 5 ms in every round: rows differ in length, the machine is slowed, now and then a spike."""
    found = []
    for slowed in disturbance:
        samples = 5 * factor * slowed * generator.lognormal(0, 0.2, batches) * generator.lognormal(0, 0.02, batches)
        samples[generator.random(batches) < 0.05] += 20
        found.append(samples.tolist())
    return found


def quiet(generator: np.random.Generator, count: int) -> np.ndarray:
    """A machine left alone: rounds differ by a percent."""
    return generator.lognormal(0, 0.01, count)


def drifting(generator: np.random.Generator, count: int) -> np.ndarray:
    """A processor that gets warm: half as fast at the end."""
    return np.linspace(1, 2, count) * quiet(generator, count)


def bursts(generator: np.random.Generator, count: int) -> np.ndarray:
    """Somebody else's work that comes and goes: a third of the rounds take two to four times as long."""
    busy = generator.random(count) < 0.33
    return np.where(busy, generator.uniform(2, 4, count), 1.0) * quiet(generator, count)


def compared(
    seed: int, factor: float, weather: Weather, own: float, count: int = 20, batches: int = 20
) -> speedup_intervals.Interval:
    """One benchmark of a model that takes ``factor`` of the time.

    Turns of a round share its weather; ``own`` is what each has for itself.
    """
    generator = np.random.default_rng(seed)
    shared = weather(generator, count)
    sides = []
    for slower in (1.0, factor):
        rows = np.random.default_rng(seed + 10**6)  # the same rows for both
        sides.append(rounds(rows, shared * generator.lognormal(0, own, count), slower, batches))
    return speedup_intervals.speedup(*sides)


# What two turns of the same round have for themselves is most where bursts begin and end between them.
WEATHERS = [(quiet, 0.01), (drifting, 0.02), (bursts, 0.05)]


# Single rows; batches of 32 when they are first looked at; reference models after the fewest rounds.
@pytest.mark.parametrize(("count", "batches"), [(20, 20), (5, 2), (3, 4)])
@pytest.mark.parametrize(("weather", "own"), WEATHERS)
def test_a_model_against_itself_holds_one(weather: Weather, own: float, count: int, batches: int) -> None:
    found = [compared(seed, 1.0, weather, own, count, batches) for seed in range(100)]
    assert sum(ratio.low <= 1.0 <= ratio.high for ratio in found) >= 90
    assert np.mean([ratio.value for ratio in found]) == pytest.approx(1.0, abs=0.005 if count == 20 else 0.02)


def test_speedups_of_separate_rounds_are_divided_with_the_errors_of_both() -> None:
    assert speedup_intervals.divided(Interval(6.0, 5.0, 7.2), Interval(2.0, 2.0, 2.0)) == pytest.approx((3.0, 2.5, 3.6))
    both = speedup_intervals.divided(Interval(6.0, 5.0, 7.2), Interval(3.0, 2.5, 3.6))
    assert both == pytest.approx((2.0, 2.0 / 1.2**2**0.5, 2.0 * 1.2**2**0.5))


@pytest.mark.parametrize(("weather", "own"), WEATHERS)
def test_ten_percent_slower_is_told_apart(weather: Weather, own: float) -> None:
    found = [compared(seed, 1.1, weather, own) for seed in range(50)]
    assert sum(ratio.high < 1.0 for ratio in found) >= (50 if weather is quiet else 45)
    assert sum(ratio.low <= 1 / 1.1 <= ratio.high for ratio in found) >= 45
    assert np.mean([ratio.value for ratio in found]) == pytest.approx(1 / 1.1, abs=0.01)


def test_an_interval_is_no_wider_than_it_must_be() -> None:
    quietly = [compared(seed, 1.0, quiet, 0.01) for seed in range(20)]
    assert np.median([ratio.high / ratio.low for ratio in quietly]) < 1.05
    stormy = [compared(seed, 1.0, bursts, 0.3) for seed in range(20)]
    assert np.median([ratio.high / ratio.low for ratio in stormy]) > 1.2


def test_rounds_are_right_where_sequential_medians_are_wrong() -> None:
    """Why turns are interleaved: on a machine that gets slower, whoever comes second loses."""
    generator = np.random.default_rng(0)
    samples = rounds(generator, drifting(generator, 40))
    first, second = samples[:20], samples[20:]
    assert speedup_intervals.speedup(first, second).high < 1.0  # told apart from itself
    assert (
        speedup_intervals.speedup(samples[::2], samples[1::2]).low
        < 1.0
        < speedup_intervals.speedup(samples[::2], samples[1::2]).high
    )


def test_speedup_of_exact_samples() -> None:
    ratio = speedup_intervals.speedup([[10.0, 12.0]] * 5, [[2.5, 3.0]] * 5)
    assert ratio.value == 4.0
    # Rounds that all agree leave what processes differ by.
    assert (ratio.low, ratio.high) == (pytest.approx(4 / np.exp(0.02)), pytest.approx(4 * np.exp(0.02)))


def test_a_ratio_uses_the_batches_that_both_models_timed() -> None:
    ratio = speedup_intervals.speedup([[10.0, 90.0, 90.0]] * 4, [[5.0]] * 4)
    assert ratio.value == 2.0


def test_a_disturbed_round_does_not_move_the_speedup() -> None:
    reference = [[10.0] * 5] * 9 + [[400.0] * 5]
    assert speedup_intervals.speedup(reference, [[5.0] * 5] * 10).value == 2.0


def test_a_ratio_uses_the_rounds_that_both_models_have() -> None:
    """A model that was precise enough stopped early: the later rounds of the teacher are of another hour."""
    assert speedup_intervals.speedup([[10.0]] * 3 + [[70.0]] * 4, [[5.0]] * 3).value == 2.0
    with pytest.raises(ValueError, match="two rounds"):
        speedup_intervals.speedup([[1.0]], [[1.0]])


def test_every_batch_counts_alike() -> None:
    """Twice as fast on a short batch and half as fast on a long one is as fast on the whole."""
    assert speedup_intervals.speedup([[2.0, 30.0]] * 5, [[1.0, 60.0]] * 5).value == pytest.approx(1.0)


def test_percentiles_and_throughput() -> None:
    samples = [[float(value) for value in range(1, 51)], [float(value) for value in range(51, 101)]]
    assert speedup_intervals.percentile(samples, 50).value == 50.5
    assert speedup_intervals.percentile(samples, 99).value == pytest.approx(99, abs=0.1)
    # 4 batches of 32 rows in 4 x 16 ms
    found = speedup_intervals.throughput([[16.0] * 4, [16.0] * 4, [1000.0] * 4], 32)
    assert found.value == pytest.approx(2000) and found.low < 500


def test_a_rate_is_the_median_over_rounds() -> None:
    found = speedup_intervals.units_per_second([[10.0, 10.0], [20.0, 20.0], [500.0, 500.0]], [20, 40, 40])
    assert found.value == pytest.approx(1000)
    assert found.low < 1000 < found.high
    with pytest.raises(ValueError, match="two rounds"):
        speedup_intervals.units_per_second([[1.0]], [1])


def test_a_percentile_has_the_interval_of_its_rounds() -> None:
    assert speedup_intervals.percentile([[3.0] * 4] * 5, 95) == pytest.approx((3.0, 3.0, 3.0))
    # A round that is slow as a whole is one draw of five, not a fifth of all samples.
    found = speedup_intervals.percentile([[1.0] * 20] * 4 + [[2.0] * 20], 50)
    assert found.value == 1.0 and found.high > 1.3
    generator = np.random.default_rng(0)
    intervals = [speedup_intervals.percentile(generator.exponential(1, (30, 20)), 95, seed=seed) for seed in range(60)]
    true = -np.log(0.05)
    assert 52 <= sum(one.low <= true <= one.high for one in intervals) < 60
    with pytest.raises(ValueError):
        speedup_intervals.percentile([[1.0], [1.0, 2.0]], 95)


def test_few_rounds_make_a_wide_interval() -> None:
    """A bootstrap alone takes the spread of three rounds for that of all: it would hold the truth in two of three."""
    found = [compared(seed, 1.0, bursts, 0.05, count=3) for seed in range(100)]
    assert sum(ratio.low <= 1.0 <= ratio.high for ratio in found) >= 90


def test_noise_is_the_spread_of_the_same_batches() -> None:
    assert speedup_intervals.noise([[5.0, 80.0]] * 10) == 0.0
    generator = np.random.default_rng(0)
    samples = np.array([100.0, 900.0]) * (1 + generator.normal(0, 0.03, (2500, 2)))
    assert speedup_intervals.noise(samples.tolist()) == pytest.approx(0.03, rel=0.1)
    assert speedup_intervals.noise([[5.0]] * 9 + [[500.0]]) == 0.0


def test_stability_is_a_stop_of_getting_faster() -> None:
    assert not speedup_intervals.is_stable([]) and not speedup_intervals.is_stable([5.0])
    assert speedup_intervals.is_stable([5.0, 5.0]) and not speedup_intervals.is_stable([9.0, 5.0])
    assert speedup_intervals.is_stable([5.0] * 10)
    assert not speedup_intervals.is_stable([10.0] * 5 + [5.0] * 5)
    assert speedup_intervals.is_stable([5.0] * 5 + [6.0] * 5)


def test_batches_are_as_long_as_the_rows_are() -> None:
    """A tenth of the rows is long, and so is a tenth of what is timed, in every round and at the same places."""
    generator, lengths = random.Random(0), [10] * 900 + [100] * 100
    ordered = speedup_intervals.by_length(lengths, generator)
    rounds_drawn = [speedup_intervals.draw_batches(ordered, 1, generator) for _ in range(3)]
    places = [[lengths[row] == 100 for (row,) in batches] for batches in rounds_drawn]
    assert places[0] == places[1] == places[2] and sum(places[0]) == 2
    assert len({row for batches in rounds_drawn for (row,) in batches}) > 50  # other rows in every round
    large = speedup_intervals.draw_batches(ordered, 32, generator)
    assert [len(set(batch)) for batch in large] == [32, 32]
    assert all(2 <= sum(lengths[row] == 100 for row in batch) <= 4 for batch in large)


def test_the_first_batches_are_spread_over_all_lengths() -> None:
    """Reference models are given these only."""
    ordered = speedup_intervals.by_length(range(1000), random.Random(0))
    first = sorted(row for (row,) in speedup_intervals.draw_batches(ordered, 1, random.Random(0))[:4])
    assert all(quarter * 250 <= row < quarter * 250 + 250 for quarter, row in enumerate(first))


def test_a_small_set_is_repeated() -> None:
    batches = speedup_intervals.draw_batches([1, 2, 0], 12, random.Random(0))
    assert [len(batch) for batch in batches] == [12, 12]
    assert {row: sum(batch.count(row) for batch in batches) for row in range(3)} == {0: 8, 1: 8, 2: 8}


def test_a_turn_has_many_single_rows_and_few_large_batches() -> None:
    assert [speedup_intervals.batches_per_round(size) for size in (1, 4, 32)] == [20, 5, 2]
