"""From which confidence predictions are certainly right as often as asked, with 95% certainty. N rows.

Thresholds that accept 5%, 10%, ... and all rows are tested in turn, beginning with few rows, as long as the binomial
bound (Clopper and Pearson 1934) says that enough of the accepted rows are right. One early error would stop such a
sequence: there are up to four, which begin at different thresholds and share the 5% of error among them: fixed-sequence
testing with several starts (Angelopoulos et al. 2021, "Learn then Test", arXiv:2110.01052). The bounds take rows to be
independent, and thresholds to be fixed; they are quantiles of the same confidences, which changes the certainty by a
few tenths of a percent.
"""

import itertools
import math
from dataclasses import dataclass

from compress.arrays import np
from compress.evaluation.metrics import Array

CERTAINTY = 0.95
LEVELS, STARTS = 20, 4


@dataclass(frozen=True)
class Level:
    """Predictions of this confidence or more: how many there are, and how often they are right.

    ``at_least`` is the lower bound of ``right``; ``share`` is of all rows.
    """

    threshold: float
    rows: int
    share: float
    right: float
    at_least: float


def levels(
    confidence: Array, correct: Array, error: float = (1 - CERTAINTY) / LEVELS, count: int = LEVELS
) -> list[Level]:
    """Return what is accepted at so many thresholds, of 20 those that accept 5%, 10%, ... and all of the rows.

    Args:
        confidence: ``[N]``.
        correct: whether each prediction is right, ``[N]``.
        error: how often each bound may be wrong; by default all of them hold together with 95% certainty.
    """
    from scipy.stats import beta

    rows = len(confidence)
    found: dict[float, Level] = {}
    falling = np.sort(confidence)[::-1]
    for step in range(1, count + 1):
        threshold = float(falling[max(0, -(-rows * step // count) - 1)])
        accepted = confidence >= threshold
        held, right = int(accepted.sum()), int(correct[accepted].sum())
        at_least = float(beta.ppf(error, right, held - right + 1)) if right else 0.0
        found[threshold] = Level(threshold, held, held / rows, right / held, at_least)
    return list(found.values())


def accept_from(
    confidence: Array, correct: Array, right: float, *, count: int = LEVELS, tries: int = 1
) -> Level | None:
    """Return the level that accepts most rows of those that are certainly ``right`` so often; None where none is.

    Args:
        count: of thresholds, as of :func:`levels`.
        tries: how many such choices share the error; all of them hold together.
    """
    starts = next((n for n in range(STARTS, 0, -1) if rows_needed(right, n * tries) <= len(confidence)), 0)
    if not starts:
        return None
    found = levels(confidence, correct, (1 - CERTAINTY) / (starts * tries), count)
    large = [level for level in found if level.rows >= rows_needed(right, starts * tries)]  # others are never certain
    best = None
    for start in np.unique(np.linspace(0, len(large) - 1, starts + 1).astype(int)[:starts]):
        for level in itertools.takewhile(lambda level: level.at_least >= right, large[start:]):
            best = level if best is None or level.rows > best.rows else best
    return best


def rows_needed(right: float, starts: int = 1) -> int:
    """Return how many accepted rows without an error are certainly ``right`` so often, with so many sequences."""
    return math.ceil(math.log((1 - CERTAINTY) / starts) / math.log(right))
