"""Which models make a cascade: arithmetic on what they predict and how long they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compress.cascades import cascade as cascade_module
from compress.cascades.cascade import LEVELS, MemberResult, best_plans, fastest_within, plans, simulate
from compress.evaluation.metrics import ACCURACY, Difference, confidence, paired_difference
from compress.inference.runners import ask_in_turn
from compress.tasks import metrics_by_name

ROWS = 1000
# Name, share of easy rows, time.
KINDS = (("fast", 0.7, 1.0), ("middle", 0.9, 4.0), ("slow", 0.99, 40.0))


def model(name: str, gold: np.ndarray, hard: np.ndarray, latency_ms: float, seed: int) -> MemberResult:
    """Return a model of two classes that is sure and right of easy rows, and unsure of the share ``hard`` of them."""
    rng = np.random.default_rng(seed)
    margin = np.where(hard, rng.normal(0.0, 0.5, ROWS), 2 + rng.random(ROWS))
    logits = np.stack([np.where(gold == 0, margin, -margin), np.zeros(ROWS)], axis=1)
    return MemberResult(name, logits, latency_ms)


@pytest.fixture(scope="module")
def models() -> tuple[list[MemberResult], np.ndarray]:
    """Return models that are unsure of 30%, 10% and 1% of the rows, and gold labels."""
    rng = np.random.default_rng(0)
    gold, difficulty = rng.integers(0, 2, ROWS), rng.random(ROWS)
    made = [
        model(name, gold, difficulty > easy, latency_ms, seed) for seed, (name, easy, latency_ms) in enumerate(KINDS)
    ]
    return made, gold


def test_a_plan_is_what_the_cascade_does(models: tuple[list[MemberResult], np.ndarray]) -> None:
    found, _ = models
    plan = simulate(found, (0, 1, 2), (0.8, 0.7))
    logits = [one.logits for one in found]

    chosen, answered = ask_in_turn(logits[0], (0.8, 0.7), lambda number, rows: logits[number][rows])
    assert (chosen.argmax(axis=1) == plan.predicted).all()
    assert [count / ROWS for count in answered] == pytest.approx(plan.answered)
    reached = 1 - np.cumsum([0, *plan.answered[:-1]])
    assert plan.latency_ms == pytest.approx(float(reached @ [1.0, 4.0, 40.0]))


def test_the_fastest_within_the_budget_is_chosen(models: tuple[list[MemberResult], np.ndarray]) -> None:
    found, gold = models
    tried = list(plans(found))
    chosen = fastest_within(tried, found, gold, ACCURACY, 1.0)
    assert chosen is not None
    reference = found[-1].logits.argmax(axis=1)
    lost = paired_difference(chosen.predicted, reference, gold, metric=ACCURACY, classes=2)
    assert lost.low >= -1.0 and chosen.latency_ms < 40 / 4
    # All members help here: the slow one reads some of the rows that the middle one is not sure of.
    assert chosen.members == (0, 1, 2) and chosen.answered[0] > 0.6
    wider = fastest_within(tried, found, gold, ACCURACY, 3.0)
    assert wider is not None and wider.latency_ms < chosen.latency_ms


def test_only_cascades_within_the_drop_are_resampled(
    models: tuple[list[MemberResult], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, gold = models
    points: list[float] = []

    def difference(*columns: np.ndarray, **options: Any) -> Difference:
        made = paired_difference(*columns, **options)
        points.append(made.points)
        return made

    monkeypatch.setattr(cascade_module, "paired_difference", difference)
    assert fastest_within(plans(found), found, gold, metrics_by_name()["macro-f1"], 1.0) is not None
    assert 0 < len(points) < 100 and min(points) >= -1.0


def test_a_model_that_does_not_help_is_left_out(models: tuple[list[MemberResult], np.ndarray]) -> None:
    found, gold = models
    slower = MemberResult("as slow as the last", found[0].logits, 39.0)
    chosen = fastest_within(plans([found[0], slower, found[2]]), [found[0], slower, found[2]], gold, ACCURACY, 1.0)
    assert chosen is not None and chosen.members == (0, 2)


def test_the_last_model_is_left_out_where_others_do(models: tuple[list[MemberResult], np.ndarray]) -> None:
    found, gold = models
    slowest = [*found, MemberResult("slowest", found[2].logits, 400.0)]
    chosen = fastest_within(plans(slowest), slowest, gold, ACCURACY, 1.0)
    assert chosen is not None and chosen.members == (0, 1, 2)


def test_nothing_is_chosen_where_nothing_is_certain(models: tuple[list[MemberResult], np.ndarray]) -> None:
    found, gold = models
    assert fastest_within(plans(found), found, gold, ACCURACY, 0.0) is None
    reversed_order = [found[2], found[0]]
    assert fastest_within(plans(reversed_order), reversed_order, gold, ACCURACY, 50.0) is None  # slower than the last


def test_thresholds_go_from_no_row_deferred_to_nearly_all(models: tuple[list[MemberResult], np.ndarray]) -> None:
    found, _ = models
    shares = sorted(plan.answered[0] for plan in plans([found[0], found[2]]))
    assert len(shares) == LEVELS[1]
    assert shares[0] == pytest.approx(1 / LEVELS[1], abs=0.002) and shares[-1] == 1.0
    assert np.diff(shares) == pytest.approx(np.full(len(shares) - 1, 1 / LEVELS[1]), abs=0.002)


def test_the_front_rises_in_time_and_in_worth(models: tuple[list[MemberResult], np.ndarray]) -> None:
    found, gold = models
    tried = list(plans(found))
    kept = best_plans(tried, gold, ACCURACY)
    times, values = [plan.latency_ms for plan in kept], [(plan.predicted == gold).mean() for plan in kept]
    assert times == sorted(times) and values == sorted(values) and len(set(values)) == len(values)
    best = {(plan.predicted == gold).mean() for plan in tried if plan.latency_ms <= times[0]}
    assert max(best) == values[0]


def test_no_row_is_asked_twice_of_a_member() -> None:
    asked: list[tuple[int, list[int]]] = []
    logits = np.array([[5.0, 0.0], [0.1, 0.0], [0.0, 6.0], [0.0, 0.2]])

    def ask(number: int, rows: np.ndarray) -> np.ndarray:
        asked.append((number, rows.tolist()))
        return logits[rows] * (number + 1)

    found, answered = ask_in_turn(logits, (0.9, 0.5), ask)
    assert asked == [(1, [1, 3])] and answered == [2, 2, 0]
    assert found.tolist() == [[5.0, 0.0], [0.2, 0.0], [0.0, 6.0], [0.0, 0.4]]
    assert logits[1].tolist() == [0.1, 0.0]  # what a member gave stays as it was


def test_confidence_is_the_largest_probability() -> None:
    import torch

    logits = np.random.default_rng(0).normal(scale=5, size=(50, 7)).astype(np.float32)
    assert confidence(logits) == pytest.approx(torch.tensor(logits).double().softmax(1).max(1).values.numpy())
    assert confidence(np.array([[1e30, -1e30]])) == pytest.approx([1.0])
