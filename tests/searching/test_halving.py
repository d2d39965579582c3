"""Rungs: their steps, who is promoted, and in which order."""

from __future__ import annotations

import pytest

from compress import recipes
from compress.searching.making import at_rung
from compress.searching.trials import LAST, RUNGS, floor, promoted, promotion_order
from compress.training.phases import steps_for


def order(points: list[tuple[float, float]], teacher: float, drop: float | None, *, metric_wins: bool) -> list[int]:
    return promotion_order(points, floor([value for _, value in points], teacher, drop), metric_wins=metric_wins)


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 1), (3, 1), (4, 2), (9, 3), (27, 9)])
def test_a_third_is_promoted(count: int, expected: int) -> None:
    assert promoted(count) == expected


@pytest.mark.parametrize("name", ["ngram", "cnn", "bilstm", "minilm-3"])
@pytest.mark.parametrize("rows", [500, 80_000, 5_000_000])
def test_a_rung_has_its_share_of_the_steps_and_reads_no_more_rows(name: str, rows: int) -> None:
    recipe = recipes.load_recipe("students", name)
    steps = []
    for rung in range(len(RUNGS)):
        made, read = at_rung(recipe, rung, rows, 2)
        assert not [*made.training.faults()] and (read or 0) <= rows
        steps.append(steps_for(read or rows, made.training))
        if read:
            assert read == steps[-1] * recipe.training.batch_size
            assert steps_for(read + 100_000, made.training) == steps[-1]  # gold rows come to these
    assert at_rung(recipe, LAST, rows, 2) == (recipe, None) and steps[LAST] == steps_for(rows, recipe.training)
    assert steps[:LAST] == pytest.approx([share * steps[LAST] for share in RUNGS[:LAST]], abs=2)


def test_without_an_accuracy_drop_fronts_are_promoted_first() -> None:
    points = [(1.0, 0.90), (3.0, 0.88), (2.0, 0.70), (5.0, 0.80)]
    found = order(points, 0.93, None, metric_wins=False)
    assert found[-1] == 2 and set(found) == {0, 1, 2, 3}


def test_what_is_out_of_reach_comes_last_the_best_first() -> None:
    # The best student is below the teacher, as all are after few steps: a point below that one is in reach.
    points = [(8.0, 0.70), (3.0, 0.895), (2.0, 0.90), (6.0, 0.85)]
    assert order(points, 0.93, 1.0, metric_wins=False)[2:] == [3, 0]
    assert set(order(points, 0.93, 1.0, metric_wins=False)[:2]) == {1, 2}


def test_reach_is_counted_from_the_best_student_or_the_teacher() -> None:
    assert floor([0.70, 0.895, 0.90, 0.85], 0.93, 1.0) == pytest.approx(0.89)
    assert floor([0.95, 0.92, 0.90], 0.93, 1.0) == pytest.approx(0.92)
    assert floor([0.95, 0.1], 0.93, None) == float("-inf")


def test_a_student_that_beats_the_teacher_does_not_raise_what_is_asked() -> None:
    assert set(order([(1.0, 0.95), (2.0, 0.92), (3.0, 0.90)], 0.93, 1.0, metric_wins=False)[:2]) == {0, 1}


def test_where_the_best_metric_wins_it_is_promoted() -> None:
    points = [(8.0, 0.70), (3.0, 0.895), (5.0, 0.895), (2.0, 0.90)]
    assert order(points, 0.93, None, metric_wins=True) == [3, 2, 1, 0]


def test_few_students_have_an_order_too() -> None:
    assert order([], 0.9, 1.0, metric_wins=False) == []
    assert order([(1.0, 0.5)], 0.9, 1.0, metric_wins=False) == [0]
    assert order([(1.0, 0.5), (1.0, 0.5)], 0.9, None, metric_wins=False) == [0, 1]
