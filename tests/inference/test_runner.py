"""Rows of similar length share a batch, and logits come back in the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from compress.errors import CompressError
from compress.inference.runner import run_by_length


def test_rows_are_sorted_and_their_logits_put_back() -> None:
    batches: list[list[int]] = []

    def run(rows: list[int]) -> np.ndarray:
        batches.append(rows)
        return np.array([[row, -row] for row in rows], dtype=np.float32)

    logits = run_by_length([5, 2, 9, 2, 7], run, 2)
    assert batches == [[1, 3], [0, 4], [2]]
    assert logits.dtype == np.float32 and logits[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_logits_of_words_follow_their_rows() -> None:
    counts = [2, 0, 1]

    def run(rows: list[int]) -> np.ndarray:
        return np.array([[10 * row + word] for row in rows for word in range(counts[row])], dtype=np.float32)

    assert run_by_length([3, 2, 1], run, 2, counts)[:, 0].tolist() == [0, 1, 20]


def test_no_rows_and_logits_that_are_not_finite_are_refused() -> None:
    with pytest.raises(CompressError, match="no rows"):
        run_by_length([], lambda rows: np.empty((0, 2)), 2)
    with pytest.raises(CompressError, match="not finite numbers; its weights are damaged"):
        run_by_length([1], lambda rows: np.array([[np.nan]]), 2)
