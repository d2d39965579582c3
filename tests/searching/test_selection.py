"""Budgets in numbers and words, and which candidate wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from compress.errors import CompressError
from compress.requests.training import DEFAULT_TIME_LIMIT_S
from compress.searching.trials import (
    SearchBudget,
    ShapeTiming,
    ValidationScore,
    choose,
    closest,
    closest_shape,
    front_of,
)


@dataclass(frozen=True)
class One:
    """A candidate that is no model: what may be judged needs nothing else."""

    timing: ShapeTiming
    score: ValidationScore


def candidate(speedup: float, points: float, *, half: float = 0.5, megabytes: float = 5.0, latency: float = 0.0) -> One:
    timing = ShapeTiming(latency or 10 / speedup, speedup, speedup / 1.05, speedup * 1.05, int(1e6 * megabytes), 10.0)
    return One(timing, ValidationScore(0.93 + points / 100, points, points - half, points + half))


CANDIDATES = [candidate(4, -0.2), candidate(20, -0.9), candidate(60, -1.4), candidate(300, -6), candidate(15, -1.0)]


@pytest.mark.parametrize(
    ("budget", "winner"),
    [
        ({"max_accuracy_drop": 1.0}, 1),
        ({"max_accuracy_drop": 2.0}, 2),
        ({"max_accuracy_drop": 0.0}, None),
        ({"min_speedup": 10.0}, 1),
        ({"min_speedup": 50.0}, 2),
        ({"max_latency_ms": 1.0}, 1),
        ({"max_latency_ms": 0.1}, 3),
        ({"max_size_mb": 4.9}, None),
        ({"max_accuracy_drop": 1.0, "min_speedup": 30.0}, None),
        ({}, 2),
    ],
)
def test_the_winner(budget: dict[str, float], winner: int | None) -> None:
    assert choose(CANDIDATES, SearchBudget(**budget)) is (None if winner is None else CANDIDATES[winner])


def test_the_front_is_by_speed_and_metric() -> None:
    assert front_of(CANDIDATES) == [CANDIDATES[number] for number in (3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"max_accuracy_drop": 0.1}, 0),
        ({"min_speedup": 1000.0}, 3),
        ({"max_accuracy_drop": 1.0, "min_speedup": 30.0}, 1),
    ],
)
def test_the_closest_lacks_least(budget: dict[str, float], expected: int) -> None:
    assert closest(CANDIDATES, SearchBudget(**budget)) is CANDIDATES[expected]
    assert closest([], SearchBudget()) is None


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"max_size_mb": 1.0}, 1),
        ({"min_speedup": 5000.0}, 2),
        ({"max_size_mb": 1.0, "min_speedup": 800.0}, 0),
        ({"max_accuracy_drop": 1.0}, 2),
    ],
)
def test_the_closest_shape_lacks_least_in_speed_and_size(budget: dict[str, float], expected: int) -> None:
    shapes = [
        candidate(278, 0, megabytes=1.3),
        candidate(64, 0, megabytes=1.1),
        candidate(401, 0, megabytes=14.8),
        candidate(10, 0, megabytes=17.7),
    ]
    assert closest_shape(shapes, SearchBudget(**budget)) is shapes[expected]
    assert closest_shape([], SearchBudget()) is None


@pytest.mark.parametrize(
    ("points", "half", "said"),
    [
        (-0.2, 0.5, "certainly within 1 point"),
        (-0.8, 0.5, "within 1 point, not certain with 872 rows"),
        (-1.2, 0.5, "beyond 1 point: −1.20"),
        (-3.0, 0.5, "certainly beyond 1 point: −3.00"),
    ],
)
def test_the_interval_says_how_certain_it_is(points: float, half: float, said: str) -> None:
    budget = SearchBudget(max_accuracy_drop=1.0)
    assert budget.certainty(candidate(10, points, half=half).score, 872) == said
    assert SearchBudget(min_speedup=2).certainty(candidate(10, points).score, 872) == ""


@pytest.mark.parametrize(
    ("budget", "refuted"),
    [
        ({"max_accuracy_drop": 1.0}, False),
        ({"max_accuracy_drop": 0.4}, True),
        ({"max_accuracy_drop": 1.0, "min_speedup": 21.0}, True),
        ({"min_speedup": 20.0}, False),
        ({"max_size_mb": 1.0}, False),
        ({"max_latency_ms": 1.9}, True),
        ({"max_latency_ms": 2.0}, False),
        ({}, False),
    ],
)
def test_new_rows_refute_a_budget_by_their_whole_interval(budget: dict[str, float], refuted: bool) -> None:
    assert SearchBudget(**budget).is_refuted(-0.5, 20.5, 2.0) is refuted


def test_a_shape_beyond_a_limit_says_by_how_much() -> None:
    timing = ShapeTiming(0.833, 12.0, 11.6, 12.4, 12_000_000, 10.0)
    budget = SearchBudget(min_speedup=20, max_latency_ms=0.5, max_size_mb=10)
    assert budget.faults(timing) == [
        "too slow: ×12.0 (×11.6 to ×12.4) where ×20.0 was asked",
        "too slow: 0.833 ms where 0.5 ms was asked",
        "too large: 12.0 MB where 10 MB was asked",
    ]
    assert budget.excess(ShapeTiming(0.25, 40.0, 39, 41, 5_000_000)) == pytest.approx(
        {"min_speedup": -1, "max_latency_ms": -1, "max_size_mb": -1}
    )
    assert SearchBudget(max_accuracy_drop=1).faults(timing) == []


def test_three_of_300_rows_are_one_point() -> None:
    drop = 100 * (0.9 - 0.89)  # a little more than 1 in floating point
    assert SearchBudget(max_accuracy_drop=1.0).shortfall(ValidationScore(0.89, -drop, -2, 0)) == 0


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({}, "nothing"),
        ({"min_speedup": 100_000}, "at least ×100,000 as fast as the teacher"),
        (
            {"max_accuracy_drop": 1.0, "min_speedup": 20},
            "at most 1 point below the teacher, at least ×20.0 as fast as it",
        ),
        ({"max_accuracy_drop": 0.5, "max_latency_ms": 2}, "at most 0.5 points below the teacher, at most 2 ms a row"),
        ({"max_size_mb": 10}, "at most 10 MB"),
    ],
)
def test_what_is_asked_in_words(budget: dict[str, Any], said: str) -> None:
    assert SearchBudget(**budget).describe() == said


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_accuracy_drop", -1.0, "at least 0"),
        ("min_speedup", 0.0, "above 0"),
        ("max_size_mb", float("nan"), "a finite number"),
        ("trials", 0, "at least 1"),
        ("time_limit", -3.0, "above 0"),
        ("max_latency_ms", float("inf"), "a finite number"),
    ],
)
def test_what_cannot_be_asked(field: str, value: float, allowed: str) -> None:
    with pytest.raises(CompressError, match=f"{field} = {value} must be {allowed}"):
        SearchBudget(**{field: value})


def test_two_hours_unless_something_else_ends_it() -> None:
    assert SearchBudget().seconds == DEFAULT_TIME_LIMIT_S
    assert SearchBudget(trials=3).seconds == float("inf")
    assert SearchBudget(trials=3, time_limit=60.0).seconds == 60
