"""Find the confidence from which predictions are right as often as asked, with 95% certainty.

Of each of 20 thresholds the exact binomial bound says how often accepted rows are right at least (Clopper and Pearson
1934). The bounds hold together by Bonferroni's correction, so that the lowest threshold whose bound is high enough may
be chosen on the same rows: selection with guaranteed risk (Geifman and El-Yaniv 2017, arXiv:1705.08500), with a fixed
list of thresholds in place of its binary search, whose path depends on the labels.
"""

import math
from dataclasses import dataclass

import numpy as np

from compress.evaluation.cluster_bootstrap import Array

CERTAINTY = 0.95
LEVELS = 20


@dataclass(frozen=True)
class Level:
    """Predictions of this confidence or more: how many there are, and how often they are right.

    ``at_least`` is the lower bound of ``right`` that holds for all levels together; ``share`` is of all rows.
    """

    threshold: float
    rows: int
    share: float
    right: float
    at_least: float


def levels(confidence: Array, correct: Array, number: int = LEVELS) -> list[Level]:
    """Return what is accepted at thresholds that accept equal steps of the rows, such as 5%, 10%, ... and all.

    Args:
        confidence: ``[N]``.
        correct: whether each prediction is right, ``[N]``.
        number: how many thresholds.
    """
    from scipy.stats import beta

    rows = len(confidence)
    found: dict[float, Level] = {}
    falling = np.sort(confidence)[::-1]
    for step in range(1, number + 1):
        threshold = float(falling[max(0, -(-rows * step // number) - 1)])
        accepted = confidence >= threshold
        count, right = int(accepted.sum()), int(correct[accepted].sum())
        at_least = float(beta.ppf((1 - CERTAINTY) / number, right, count - right + 1)) if right else 0.0
        found[threshold] = Level(threshold, count, count / rows, right / count, at_least)
    return list(found.values())


def accept_from(confidence: Array, correct: Array, right: float) -> Level | None:
    """Return the level that accepts most rows of those that are certainly ``right`` so often; None where none is.

    Fewer thresholds than 20 are tried where so few rows could not be certain at any of 20, not even without an error.
    """
    number = next((count for count in range(LEVELS, 0, -1) if rows_needed(right, count) <= len(confidence)), 0)
    found = levels(confidence, correct, number)
    return next((level for level in reversed(found) if level.at_least >= right), None)


def rows_needed(right: float, number: int = 1) -> int:
    """Return how many accepted rows without an error make one of ``number`` levels certainly ``right`` so often."""
    return math.ceil(math.log((1 - CERTAINTY) / number) / math.log(right))
