"""Confident learning and classes that look alike, against numbers worked out by hand and those of cleanlab."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, fisher_exact

from compress.auditing.label_errors import (
    FOLDS,
    assign_folds,
    confident_joint,
    confused_pairs,
    cross_validated,
    find_suspects,
    wrong_labels,
)
from compress.evaluation.metrics import as_sets
from compress.tasks import find_task

CHANCES = np.array(
    [
        [0.9, 0.1, 0.0],
        [0.7, 0.2, 0.1],
        [0.2, 0.8, 0.0],  # labelled 0, and as sure of 1 as its rows are
        [0.1, 0.7, 0.2],
        [0.3, 0.6, 0.1],
        [0.7, 0.2, 0.1],  # labelled 1, above the mean of 0
        [0.2, 0.1, 0.7],
        [0.45, 0.25, 0.3],  # labelled 2, likelier 0, but below the mean of 0
    ]
)
GIVEN = np.array([0, 0, 0, 1, 1, 1, 2, 2])


def test_the_confident_joint_counts_labels_by_classes_that_reach_their_mean() -> None:
    # Means of the own rows: (0.9 + 0.7 + 0.2) / 3 = 0.6, (0.7 + 0.6 + 0.2) / 3 = 0.5, (0.7 + 0.3) / 2 = 0.5.
    joint, confident = confident_joint(CHANCES, GIVEN)
    assert confident.tolist() == [0, 0, 1, 1, 1, 0, 2, -1]
    assert joint.tolist() == [[2, 1, 0], [1, 2, 0], [0, 0, 1]]
    assert wrong_labels(joint, GIVEN) == pytest.approx(3 * 1 / 3 + 3 * 1 / 3 + 0)


def test_suspects_come_with_the_surest_first() -> None:
    found = find_suspects(CHANCES, GIVEN)
    assert found.rows.tolist() == [2, 5] and found.label is None  # margins 0.6 and 0.5
    assert found.given.tolist() == [0, 1] and found.suggested.tolist() == [1, 0]
    assert found.given_chance.tolist() == [0.2, 0.2] and found.suggested_chance.tolist() == [0.8, 0.7]
    assert found.estimated == pytest.approx(2)


def test_suspects_are_those_of_cleanlab_in_its_order() -> None:
    """Of version 2.9.0, by ``find_label_issues`` with "confident_learning" and "normalized_margin"."""
    draw = np.random.default_rng(0)
    true = draw.integers(0, 3, 400)
    given = np.where(draw.random(400) < 0.1, draw.integers(0, 3, 400), true)
    raised = np.exp(draw.normal(size=(400, 3)) + 2.5 * np.eye(3)[true])
    found = find_suspects(raised / raised.sum(axis=1, keepdims=True), given)
    assert found.rows.tolist() == CLEANLAB


CLEANLAB = [365, 323, 89, 22, 91, 133, 69, 165, 7, 261, 176, 48, 382, 369, 145, 102]


def test_a_class_that_is_less_likely_than_the_label_is_not_suggested() -> None:
    """The mean of a rare class is near 0 where no other row is of it, and any row reaches it."""
    chances = np.array([[0.9, 0.1 - 1e-6, 1e-6], [0.5, 0.5 - 1e-4, 1e-4], [0.1, 0.9 - 1e-4, 1e-4], [1.0, 0.0, 1e-9]])
    _, confident = confident_joint(chances, np.array([0, 0, 1, 2]))
    assert confident[1] == 2  # by the rule of the paper alone
    assert 1 not in find_suspects(chances, np.array([0, 0, 1, 2])).rows


def test_each_of_several_labels_is_judged_by_itself() -> None:
    held = np.array([[1, 0], [1, 1], [0, 0], [0, 1]], bool)
    chances = np.array(
        [[0.9, 0.2], [0.1, 0.9], [0.1, 0.9], [0.2, 0.8]]
    )  # rows 1 and 2: label 0 too many, label 1 missing
    found = find_suspects(chances, as_sets(held))
    assert found.label is not None
    judged = sorted(
        zip(found.rows.tolist(), found.label.tolist(), found.given.tolist(), found.suggested.tolist(), strict=True)
    )
    assert judged == [(1, 0, 1, 0), (2, 1, 0, 1)]


def test_folds_do_not_part_groups_and_have_like_shares_of_labels() -> None:
    draw = np.random.default_rng(1)
    groups, gold = np.arange(1000), (draw.random(1000) < 0.1).astype(int)
    groups[900:] = groups[800:900]
    gold[900:] = gold[800:900]
    folds = assign_folds(groups, gold, 0)
    assert (folds[900:] == folds[800:900]).all()
    counts = np.array([np.bincount(gold[folds == fold], minlength=2) for fold in range(FOLDS)])
    assert np.ptp(counts[:, 0]) < 40 and np.ptp(counts[:, 1]) < 12 and counts.sum() == 1000
    assert (assign_folds(groups, gold, 0) == folds).all() and (assign_folds(groups, gold, 1) != folds).any()


def test_each_row_is_judged_by_what_was_fitted_on_other_rows() -> None:
    """A feature that only one row has teaches nothing about it."""
    task = find_task("classification")
    gold = np.arange(50) % 2
    own = cross_validated(np.eye(50), gold, task, 2, np.arange(50) // 2 % FOLDS)
    assert np.ptp(own[:, 1] - own[:, 0]) < 0.1
    told = cross_validated(np.eye(2)[gold], gold, task, 2, np.arange(50) // 2 % FOLDS)
    assert (told.argmax(axis=1) == gold).all()


def draws(rows: int, sure: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return chances and classes of rows of three classes, of which the last two are told apart so often."""
    draw = np.random.default_rng(seed)
    gold = np.arange(rows) % 3
    answer = np.where((gold > 0) & (draw.random(rows) > sure), 3 - gold, gold)
    return 0.1 + 0.7 * np.eye(3)[answer], np.eye(3, dtype=bool)[gold]


def test_classes_are_compared_by_fisher_and_by_binomial_bounds() -> None:
    chances, held = draws(300, 0.7)
    pairs, judged, few = confused_pairs(chances, held)
    assert (judged, few) == (3, 0) and [(one["first"], one["second"]) for one in pairs] == [(1, 2)]
    answer, gold = chances.argmax(axis=1), held.argmax(axis=1)
    table = [[((gold == one) & (answer == other)).sum() for other in (1, 2)] for one in (1, 2)]
    p_value = fisher_exact(table, alternative="greater").pvalue
    wrong, rows = table[0][1] + table[1][0], 200
    assert pairs[0]["apart"] is bool(p_value <= 0.05 / 3) is True
    assert (pairs[0]["confused"], pairs[0]["rows"]) == (wrong, rows)
    assert pairs[0]["low"] == pytest.approx(beta.ppf(0.025 / 3, wrong, rows - wrong + 1))
    assert pairs[0]["high"] == pytest.approx(beta.ppf(1 - 0.025 / 3, wrong + 1, rows - wrong))


@pytest.mark.parametrize(
    ("rows", "sure", "expected"), [(300, 0.5, [False]), (300, 0.97, []), (300, 1.0, []), (15, 1.0, [])]
)
def test_what_is_told_apart_is_not_reported(rows: int, sure: float, expected: list[bool]) -> None:
    pairs, judged, few = confused_pairs(*draws(rows, sure))
    assert [one["apart"] for one in pairs] == expected
    assert (judged, few) == (3, 0)


def test_few_rows_are_not_judged() -> None:
    assert confused_pairs(*draws(9, 0.0)) == ([], 0, 3)
    assert confused_pairs(np.array([[0.6, 0.4]]), np.array([[True, False]])) == ([], 0, 0)


def test_rows_of_both_labels_say_nothing_about_a_pair() -> None:
    chances, held = draws(300, 0.5)
    both = np.array([[False, True, True]] * 50)
    assert (
        confused_pairs(np.vstack([chances, chances[:50]]), np.vstack([held, both]))[0]
        == confused_pairs(chances, held)[0]
    )
