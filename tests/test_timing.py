"""The statistics of speed on synthetic samples whose truth is known."""

from __future__ import annotations

import random

import numpy as np
import pytest

from compress.measuring import timing


def rounds(generator: np.random.Generator, disturbance: np.ndarray, factor: float = 1.0) -> list[list[float]]:
    """20 batches of 5 ms in every round: rows differ in length, the machine is slowed, now and then a spike."""
    found = []
    for slowed in disturbance:
        samples = 5 * factor * slowed * generator.lognormal(0, 0.2, 20) * generator.lognormal(0, 0.02, 20)
        samples[generator.random(20) < 0.05] += 20
        found.append(samples.tolist())
    return found


def world(seed: int, factor: float, count: int = 20) -> timing.Ratio:
    """One benchmark: rounds share what disturbs the machine, and models share the rows of a round."""
    generator = np.random.default_rng(seed)
    slowed = generator.lognormal(0, 0.3, count)
    rows = np.random.default_rng(seed + 10**6)
    reference = rounds(rows, slowed * generator.lognormal(0, 0.03, count))
    rows = np.random.default_rng(seed + 10**6)
    model = rounds(rows, slowed * generator.lognormal(0, 0.03, count), factor)
    return timing.speedup(reference, model)


def test_a_model_against_itself_holds_one() -> None:
    found = [world(seed, 1.0) for seed in range(100)]
    assert sum(ratio.low <= 1.0 <= ratio.high for ratio in found) >= 88
    assert np.mean([ratio.value for ratio in found]) == pytest.approx(1.0, abs=0.005)


def test_ten_percent_slower_is_told_apart() -> None:
    found = [world(seed, 1.1) for seed in range(50)]
    assert sum(ratio.high < 1.0 for ratio in found) >= 48
    assert np.mean([ratio.value for ratio in found]) == pytest.approx(1 / 1.1, abs=0.01)


def test_speedup_of_exact_samples() -> None:
    ratio = timing.speedup([[10.0, 12.0]] * 5, [[2.5, 3.0]] * 5)
    assert ratio.value == 4.0
    # Rounds that all agree leave what processes differ by.
    assert (ratio.low, ratio.high) == (pytest.approx(4 / np.exp(0.01)), pytest.approx(4 * np.exp(0.01)))


def test_a_disturbed_round_does_not_move_the_speedup() -> None:
    reference = [[10.0] * 5] * 9 + [[400.0] * 5]
    assert timing.speedup(reference, [[5.0] * 5] * 10).value == 2.0


def test_a_ratio_needs_the_same_rounds() -> None:
    with pytest.raises(ValueError, match="same rounds"):
        timing.speedup([[1.0]] * 3, [[1.0]] * 4)
    with pytest.raises(ValueError, match="same rounds"):
        timing.speedup([[1.0]], [[1.0]])


def test_percentiles_and_throughput() -> None:
    samples = [[float(value) for value in range(1, 51)], [float(value) for value in range(51, 102)]]
    found = timing.percentiles(samples)
    assert found[50] == 51 and found[99] == pytest.approx(100)
    # 4 batches of 32 rows in 4 x 16 ms
    assert timing.throughput([[16.0] * 4, [16.0] * 4, [1000.0] * 4], 32) == pytest.approx(2000)


def test_noise() -> None:
    assert timing.noise([5.0] * 10) == 0.0
    generator = np.random.default_rng(0)
    assert timing.noise(100 + generator.normal(0, 3, 5000)) == pytest.approx(0.03, rel=0.1)
    assert timing.noise([5.0] * 9 + [500.0]) == 0.0


def test_stability_is_a_stop_of_getting_faster() -> None:
    assert not timing.is_stable([5.0] * 9)
    assert timing.is_stable([5.0] * 10)
    assert not timing.is_stable([10.0] * 5 + [5.0] * 5)
    assert timing.is_stable([5.0] * 5 + [6.0] * 5)


def test_batches_are_drawn_without_repetition_where_possible() -> None:
    for batch in timing.draw_batches(random.Random(0), 100, 32, 6):
        assert len(set(batch)) == 32 and max(batch) < 100
    (batch,) = timing.draw_batches(random.Random(0), 5, 12, 1)
    assert len(batch) == 12 and set(batch) == set(range(5))
    assert timing.draw_batches(random.Random(7), 50, 4, 3) == timing.draw_batches(random.Random(7), 50, 4, 3)


def test_a_turn_has_many_single_rows_and_few_large_batches() -> None:
    assert [timing.batches_per_round(size) for size in (1, 4, 32)] == [20, 5, 4]
