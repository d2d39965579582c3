"""What differences, speed-ups and latencies mean for a budget, and whether as many examples as asked for decide."""

from __future__ import annotations

import math

import numpy as np
import pytest

from compress.benchmarking.results.verdict import (
    UNDECIDED,
    WITHIN,
    WORSE,
    Verdict,
    judge_drop,
    judge_drop_of,
    judge_speedup,
    rows_to_decide,
)
from compress.evaluation.metrics import ACCURACY, Difference, paired_difference
from tests.support.results import line

NARROWER = "a benchmark with a longer --time-limit and a smaller --half-width would narrow it"
POWERED = 1.959963984540054 + 0.8416212335729143  # z of 97.5% and of 80%


@pytest.mark.parametrize(
    ("low", "high", "budget", "outcome"),
    [
        (-0.9, 0.3, 1.0, WITHIN),
        (-1.0, 0.3, 1.0, WITHIN),
        (-3.0, -1.2, 1.0, WORSE),
        (-3.0, -0.6, 0.5, WORSE),
        (0.1, 0.3, 0.0, WITHIN),
    ],
)
def test_a_drop_is_decided_by_its_whole_interval(low: float, high: float, budget: float, outcome: str) -> None:
    assert judge_drop((low + high) / 2, low, high, budget, 1000) == Verdict(outcome)


@pytest.mark.parametrize(("points", "low", "high"), [(-0.8, -1.8, 0.2), (-1.2, -2.2, -0.2)])
def test_needed_rows_of_any_metric_shrink_the_half_width(points: float, low: float, high: float) -> None:
    # 0.2 from the budget on either side, half a width of 1.0 that crosses it, 1,000 rows.
    found = judge_drop(points, low, high, 1.0, 1000)
    expected = 1000 * (1.0 / 1.959963984540054 * POWERED / 0.2) ** 2
    assert rows_to_decide(points, low, high, 1.0, 1000) == math.ceil(expected)
    more = math.ceil((expected - 1000) / 1000) * 1000
    assert found == Verdict(UNDECIDED, f"about {more:,} more examples would decide (with a chance of 80%)")
    assert found.short == f"about {more:,} more"


def test_only_the_side_that_crosses_the_budget_counts() -> None:
    expected = math.ceil(1000 * (0.7 / 1.959963984540054 * POWERED / 0.5) ** 2)
    assert rows_to_decide(-0.5, -1.2, 0.5, 1.0, 1000) == rows_to_decide(-0.5, -1.2, 5.0, 1.0, 1000) == expected


@pytest.mark.parametrize(("won_rate", "lost_rate", "budget"), [(0.02, 0.025, 1.5), (0.01, 0.03, 1.0)])
def test_as_many_rows_as_asked_for_decide_four_times_in_five(won_rate: float, lost_rate: float, budget: float) -> None:
    """One case is within its budget, one is beyond: fresh sets of the needed size, judged by the real interval."""
    generator, rows = np.random.default_rng(0), 1000

    def difference(wins: int, losses: int, size: int) -> Difference:
        gold = np.zeros(size, int)
        model, reference = gold.copy(), gold.copy()
        reference[:wins], model[wins : wins + losses] = 1, 1
        return paired_difference(model, reference, gold, metric=ACCURACY, classes=2)

    def decided(size: int) -> float:
        count = 0
        for _ in range(300):
            wins, losses, _ = generator.multinomial(size, [won_rate, lost_rate, 1 - won_rate - lost_rate])
            found = difference(wins, losses, size)
            count += judge_drop(found.points, found.low, found.high, budget, size).outcome != UNDECIDED
        return count / 300

    first = difference(round(won_rate * rows), round(lost_rate * rows), rows)
    needed = rows_to_decide(first.points, first.low, first.high, budget, rows)
    assert needed is not None and rows < needed < 20_000

    assert decided(needed) == pytest.approx(0.80, abs=0.06)
    assert decided(needed // 2) < 0.65


def test_a_loss_that_is_the_budget_needs_no_number() -> None:
    found = judge_drop(-1.0, -2.0, 0.0, 1.0, 1000)
    assert found == Verdict(UNDECIDED, "the loss is the budget; more examples will hardly decide")
    assert found.short == found.more
    assert rows_to_decide(-0.999, -2.0, 0.0, 1.0, 1000) is None  # more than a million


def test_a_line_is_judged_by_its_interval() -> None:
    found = line("student", difference_points=-0.5, difference_low=-1.2, difference_high=0.2, metric_rows=2000)
    assert judge_drop_of(found, 1.0) == judge_drop(-0.5, -1.2, 0.2, 1.0, 2000)


@pytest.mark.parametrize(
    ("low", "high", "outcome", "more"),
    [
        (5.0, 6.0, WITHIN, ""),
        (4.0, 4.9, WORSE, ""),
        (4.9, 5.4, UNDECIDED, NARROWER),
        (5.0, 90.0, WITHIN, ""),
        (4.0, 5.0, UNDECIDED, NARROWER),
        (0.1, 4.9, WORSE, ""),
    ],
)
def test_speedups(low: float, high: float, outcome: str, more: str) -> None:
    assert judge_speedup(5.2, low, high, 5.0) == Verdict(outcome, more)


def test_a_budget_that_is_the_speedup_is_not_decided_by_measuring_again() -> None:
    found = judge_speedup(5.1, 4.9, 5.3, 5.0)
    assert found.outcome == UNDECIDED and found.more.endswith("another benchmark will hardly decide")
