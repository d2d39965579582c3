"""Thresholds: the bound is exact, holds for all of them together, and what is accepted is right as often as asked."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from compress.evaluation.acceptance import CERTAINTY, LEVELS, STARTS, accept_from, levels, rows_needed


def test_bound_is_the_share_at_which_so_many_right_ones_are_unlikely() -> None:
    confidence, correct = np.linspace(1, 0, 200), np.ones(200, bool)
    correct[[30, 77, 120, 199]] = False
    for level in levels(confidence, correct):
        right = round(level.right * level.rows)
        assert binom.sf(right - 1, level.rows, level.at_least) == pytest.approx((1 - CERTAINTY) / LEVELS)


def test_bound_without_an_error_has_a_closed_form() -> None:
    *_, last = levels(np.linspace(1, 0.5, 100), np.ones(100, bool), error=0.05)
    assert last.at_least == pytest.approx(0.05 ** (1 / 100)) and last.threshold == 0.5 and last.share == 1.0


def test_levels_accept_what_their_threshold_says() -> None:
    rng = np.random.default_rng(0)
    confidence = np.round(rng.random(333), 2)  # with ties
    correct = rng.random(333) < confidence
    found = levels(confidence, correct)
    for level in found:
        own = correct[confidence >= level.threshold]
        assert (level.rows, level.right) == (len(own), pytest.approx(own.mean()))
    assert [level.share for level in found] == sorted(level.share for level in found) and found[-1].share == 1.0


def test_the_most_rows_that_are_certain_are_accepted() -> None:
    confidence, correct = np.linspace(1, 0, 1000), np.arange(1000) < 700
    found = accept_from(confidence, correct, 0.9)
    assert found is not None and found.right >= 0.9 and found.at_least >= 0.9
    # Of the next level the bound is below.
    wider = next(level for level in levels(confidence, correct, 0.05 / STARTS) if level.rows > found.rows)
    assert wider.at_least < 0.9


def test_an_early_error_stops_one_sequence_and_not_all() -> None:
    confidence, correct = np.linspace(1, 0, 1000), np.ones(1000, bool)
    correct[:40] = False
    found = accept_from(confidence, correct, 0.9)
    assert found is not None and found.share == 1.0 and found.right == 0.96


@pytest.mark.slow
@pytest.mark.parametrize("right", [0.85, 0.6])
def test_accepted_rows_are_right_as_often_as_asked_nineteen_times_in_twenty(right: float) -> None:
    # Nothing tells rows apart, and they are right a little less often than asked: to accept any is an error.
    rng, drawn = np.random.default_rng(0), 500
    accepted = sum(
        accept_from(rng.random(300), rng.random(300) < right - 0.001, right) is not None for _ in range(drawn)
    )
    assert 0.01 * drawn < accepted < 0.05 * drawn + 2 * (0.05 * 0.95 * drawn) ** 0.5


@pytest.mark.parametrize(("rows", "accepts"), [(58, False), (59, True), (300, True)])
def test_few_rows_are_tested_in_fewer_sequences(rows: int, accepts: bool) -> None:
    found = accept_from(np.linspace(1, 0.5, rows), np.ones(rows, bool), 0.95)
    assert (found is not None) is accepts
    assert found is None or found.share == 1.0


def test_nothing_is_accepted_of_no_rows() -> None:
    assert accept_from(np.zeros(0), np.zeros(0, bool), 0.5) is None
    assert rows_needed(0.95) == 59 and rows_needed(0.95, STARTS) == 86
