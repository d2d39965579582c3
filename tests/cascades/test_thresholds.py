"""Which models make a cascade: arithmetic on what they predict and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compress.cascades import cascade as cascade_module
from compress.cascades.cascade import LEVELS, AccuracyDrop, MemberResults, PromisedAgreement
from compress.evaluation.acceptance import rows_needed
from compress.evaluation.metrics import ACCURACY, Difference, confidence, paired_difference
from compress.inference.runners import ask_in_turn
from compress.tasks import metrics_by_name

ROWS = 1000
# Name, share of easy rows, time.
KINDS = (("fast", 0.7, 1.0), ("middle", 0.9, 4.0), ("slow", 0.99, 40.0))


def logits(gold: np.ndarray, hard: np.ndarray, seed: int) -> np.ndarray:
    """Return those of a model of two classes that is sure and right of easy rows, and unsure of the ``hard`` ones."""
    rng = np.random.default_rng(seed)
    margin = np.where(hard, rng.normal(0.0, 0.5, ROWS), 2 + rng.random(ROWS))
    return np.stack([np.where(gold == 0, margin, -margin), np.zeros(ROWS)], axis=1)


@pytest.fixture(scope="module")
def results() -> MemberResults:
    """Return models that are unsure of 30%, 10% and 1% of the rows."""
    rng = np.random.default_rng(0)
    gold, difficulty = rng.integers(0, 2, ROWS), rng.random(ROWS)
    found = [logits(gold, difficulty > easy, seed) for seed, (_, easy, _) in enumerate(KINDS)]
    return MemberResults([name for name, *_ in KINDS], found, [time for *_, time in KINDS], gold, ACCURACY)


def of(results: MemberResults, *numbers: int, latencies_ms: Sequence[float] = ()) -> MemberResults:
    """Return some of the models, with other times where they are given."""
    return replace(
        results,
        names=[results.names[number] for number in numbers],
        logits=[results.logits[number] for number in numbers],
        latencies_ms=latencies_ms or [results.latencies_ms[number] for number in numbers],
    )


def test_a_plan_is_what_the_cascade_does(results: MemberResults) -> None:
    plan = results.simulate((0, 1, 2), (0.8, 0.7))

    chosen, answered = ask_in_turn(results.logits[0], (0.8, 0.7), lambda number, rows: results.logits[number][rows])
    assert (chosen.argmax(axis=1) == plan.predicted).all()
    assert [count / ROWS for count in answered] == pytest.approx(plan.answered)
    reached = 1 - np.cumsum([0, *plan.answered[:-1]])
    assert plan.latency_ms == pytest.approx(float(reached @ [1.0, 4.0, 40.0]))


def test_the_fastest_within_the_budget_is_chosen(results: MemberResults) -> None:
    tried = list(results.plans())
    chosen = AccuracyDrop(1.0).fastest(tried, results)
    assert chosen is not None
    reference = results.logits[-1].argmax(axis=1)
    lost = paired_difference(chosen.predicted, reference, results.gold, metric=ACCURACY, classes=2)
    assert lost.low >= -1.0 and chosen.latency_ms < 40 / 4
    # All members help here: the slow one reads some of the rows that the middle one is not sure of.
    assert chosen.members == (0, 1, 2) and chosen.answered[0] > 0.6
    wider = AccuracyDrop(3.0).fastest(tried, results)
    assert wider is not None and wider.latency_ms < chosen.latency_ms


def test_only_cascades_within_the_drop_are_resampled(results: MemberResults, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[float] = []

    def difference(*columns: np.ndarray, **options: Any) -> Difference:
        made = paired_difference(*columns, **options)
        points.append(made.points)
        return made

    monkeypatch.setattr(cascade_module, "paired_difference", difference)
    by_f1 = replace(results, metric=metrics_by_name()["macro-f1"])
    assert AccuracyDrop(1.0).fastest(by_f1.plans(), by_f1) is not None
    assert 0 < len(points) < 100 and min(points) >= -1.0


def test_a_model_that_does_not_help_is_left_out(results: MemberResults) -> None:
    slower = of(results, 0, 0, 2, latencies_ms=(1.0, 39.0, 40.0))
    chosen = AccuracyDrop(1.0).fastest(slower.plans(), slower)
    assert chosen is not None and chosen.members == (0, 2)


def test_the_last_model_is_left_out_where_others_do(results: MemberResults) -> None:
    slowest = of(results, 0, 1, 2, 2, latencies_ms=(1.0, 4.0, 40.0, 400.0))
    chosen = AccuracyDrop(1.0).fastest(slowest.plans(), slowest)
    assert chosen is not None and chosen.members == (0, 1, 2)


def test_nothing_is_chosen_where_nothing_is_certain(results: MemberResults) -> None:
    assert AccuracyDrop(0.0).fastest(results.plans(), results) is None
    reversed_order = of(results, 2, 0)
    assert AccuracyDrop(50.0).fastest(reversed_order.plans(), reversed_order) is None  # slower than the last


def test_thresholds_go_from_no_row_deferred_to_nearly_all(results: MemberResults) -> None:
    shares = sorted(plan.answered[0] for plan in of(results, 0, 2).plans())
    assert len(shares) == LEVELS[1]
    assert shares[0] == pytest.approx(1 / LEVELS[1], abs=0.002) and shares[-1] == 1.0
    assert np.diff(shares) == pytest.approx(np.full(len(shares) - 1, 1 / LEVELS[1]), abs=0.002)


def test_the_front_rises_in_time_and_in_worth(results: MemberResults) -> None:
    tried, gold = list(results.plans()), results.gold
    kept = results.best_plans(tried)
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


# A promise of agreement


def agreeing(confidence: np.ndarray, *same: np.ndarray) -> list[Any]:
    """Return what models of this confidence ``[N]`` promise that are the same as the last one where they say so."""
    margin = np.log(confidence / (1 - confidence))
    of_models = [np.stack([np.where(one, margin, 0.0), np.where(one, 0.0, margin)], axis=1) for one in same]
    last, names = np.tile([9.0, 0.0], (len(confidence), 1)), [str(number) for number in range(len(same) + 1)]
    times = [*np.arange(1.0, len(same) + 1), 40.0]
    found = MemberResults(names, [*of_models, last], times, np.zeros(len(confidence), int), ACCURACY)
    return [*PromisedAgreement(0.98).plans(found)]


@pytest.mark.parametrize("models", [1, 2])
def test_an_agreement_below_the_promise_is_promised_in_at_most_5_of_100_draws(models: int) -> None:
    """Here every promise is broken: 97.99% agree at any confidence. Shared among models, the errors are of all."""
    rng, drawn = np.random.default_rng(1), 200 * models
    broken = sum(
        bool(agreeing(rng.uniform(0.51, 0.99, 1000), *(rng.random((models, 1000)) < 0.9799))) for _ in range(drawn)
    )
    assert 0 < broken <= 0.05 * drawn


def test_models_share_the_error() -> None:
    """Rows without a difference are certain for one model alone earlier than for two together."""
    for models, rows in ((1, rows_needed(0.98)), (2, rows_needed(0.98, 2))):
        assert rows_needed(0.98) == 149 and rows_needed(0.98, 2) == 183
        for fewer in (0, 1):
            confidence = np.linspace(0.6, 0.9, rows - fewer)
            assert len(agreeing(confidence, *(np.ones(rows - fewer, bool),) * models)) == models * (1 - fewer)


def test_it_is_said_what_agrees_and_is_too_slow(results: MemberResults) -> None:
    slow = of(results, 1, 2, latencies_ms=(39.0, 40.0))
    limit = PromisedAgreement(0.95)
    tried = [*limit.plans(slow)]
    assert tried and limit.fastest(tried, slow) is None
    said = limit.none(tried, slow)
    assert "middle answers" in said and "give a faster model before it" in said


def test_more_rows_are_answered_where_less_is_promised(results: MemberResults) -> None:
    answered = [
        max(plan.answered[0] for plan in PromisedAgreement(least).plans(results)) for least in (0.9, 0.95, 0.98)
    ]
    assert answered == sorted(answered, reverse=True) and answered[0] > answered[-1] > 0.5
    for plan in PromisedAgreement(0.98).plans(results):
        found = PromisedAgreement.figures(plan, results)
        assert (
            found["rows"] == round(ROWS * plan.answered[0])
            and 0.98 <= found["at_least"] <= found["same"] / found["rows"]
        )


def test_nothing_agrees_for_certain_on_few_rows(results: MemberResults) -> None:
    few = replace(results, logits=[one[:40] for one in results.logits], gold=results.gold[:40])
    assert [*PromisedAgreement(0.98).plans(few)] == [] and PromisedAgreement.fastest([], few) is None
