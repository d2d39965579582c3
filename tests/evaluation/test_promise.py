"""The sequential test of a promised share: false alarms, what it finds, and the sums it is made of."""

from __future__ import annotations

import numpy as np
import pytest

from compress.evaluation.promise import MOST, POWERS, SequentialTest


def ended(promised: float, same: np.ndarray) -> SequentialTest:
    """Return the test after these rows, or after the first that breaks the promise."""
    test = SequentialTest(promised)
    for one in same.tolist():
        test.add(one)
        if not test.holds:
            break
    return test


def test_a_kept_promise_is_called_broken_in_at_most_5_of_100_streams_whenever_one_looks() -> None:
    rng, streams = np.random.default_rng(0), 1000
    alarms = sum(not ended(0.98, rng.random(1000) < 0.98).holds for _ in range(streams))
    assert 0 < alarms <= 0.05 * streams


@pytest.mark.parametrize(("good", "within"), [(0, 150), (1000, 400)])
def test_nine_in_ten_instead_of_98_of_100_is_found_also_after_many_good_rows(good: int, within: int) -> None:
    rng = np.random.default_rng(1)
    needed = []
    for _ in range(50):
        test = ended(0.98, np.concatenate([rng.random(good) < 0.995, rng.random(2000) < 0.9]))
        assert not test.holds
        needed.append(test.rows - good)
    assert 0 < np.quantile(needed, 0.9) <= within


def test_the_bets_are_worth_what_their_definition_says() -> None:
    same, promised = [True, False, True, True, False], 0.9
    test = SequentialTest(promised)
    values = []
    for number, one in enumerate(same, 1):
        test.add(one)
        worth = 1 / (number + 1)  # of the bets that begin later
        for begin in range(number):
            for power in POWERS:
                other = promised**power
                each = [other / promised if row else (1 - other) / (1 - promised) for row in same[begin:number]]
                worth += np.prod(each) / ((begin + 1) * (begin + 2)) / len(POWERS)
        values.append(worth)
    assert test.evidence == pytest.approx(max(1.0, *values))
    assert (test.rows, test.same) == (5, 3)


@pytest.mark.parametrize("promised", [0.5, 0.98, 0.999])
def test_no_row_is_expected_to_raise_what_the_bets_are_worth(promised: float) -> None:
    for power in POWERS:
        other = promised**power
        for share in np.linspace(promised, 1, 5):
            assert share * other / promised + (1 - share) * (1 - other) / (1 - promised) <= 1 + 1e-12


def test_a_broken_promise_stays_broken_and_evidence_finite() -> None:
    test = ended(0.98, np.zeros(20, bool))
    for same in [False] * 2000 + [True] * 2000:
        test.add(same)
    assert not test.holds and 20 < test.evidence <= MOST
