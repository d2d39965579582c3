"""What a measured difference, speed-up or latency means for a budget: within it, worse, or not to be decided yet.

A budget is held or broken only when the whole 95% interval lies on one side of it. Everything here is a pure function
of numbers, so the gate and the report judge alike.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

from compress.benchmarking.results.schema import Measurement
from compress.evaluation.cluster_bootstrap import CONFIDENCE

WITHIN, WORSE, UNDECIDED = "within", "worse", "undecided"
NARROWER = "a benchmark with a longer --time-limit and a smaller --half-width would narrow it"
# About half the width of the narrowest intervals that speed-ups get (:data:`PROCESS_SPREAD`).
NARROWEST = 0.03
POWER = 0.80  # how often the examples asked for decide, if the true difference is the observed one
MOST_ROWS = 1_000_000  # nobody labels more to settle a budget


@dataclass(frozen=True)
class Verdict:
    """``outcome`` is ``within``, ``worse`` or ``undecided``; ``more`` says what would decide."""

    outcome: str
    more: str = ""

    @property
    def short(self) -> str:
        """The same for a cell: ``about 300 more``."""
        return self.more.partition(" examples")[0] if self.more.startswith("about") else self.more


def judge_drop(
    difference_points: float,
    low: float,
    high: float,
    budget_points: float,
    rows: int,
    *,
    won: int | None = None,
    lost: int | None = None,
) -> Verdict:
    """Judge a paired difference, model minus reference in points, against the points that may be lost.

    Args:
        low, high: its paired 95% interval, in points.
        budget_points: largest loss allowed, 0 or more.
        rows: examples it was measured on.
        won, lost: rows that only the model, and only the reference, has right. Give them for accuracy, of which the
            interval follows from these counts; for other metrics the needed rows follow from the interval's width.
    """
    if high < -budget_points:
        return Verdict(WORSE)
    if low >= -budget_points:
        return Verdict(WITHIN)
    needed = rows_to_decide(difference_points, low, high, budget_points, rows, won=won, lost=lost)
    if needed is None:
        return Verdict(UNDECIDED, "the loss is the budget; more examples will hardly decide")
    more = f"about {_rounded_up(needed - rows):,} more examples would decide (with a chance of {POWER:.0%})"
    return Verdict(UNDECIDED, more)


def judge_drop_of(line: Measurement, budget_points: float) -> Verdict:
    """Judge a result line against its teacher; the counts of won and lost rows are used where they make the difference.

    Raises:
        ValueError: the line is of random weights and has no metric.
    """
    if line.difference is None:
        raise ValueError(f"{line.model} has no {line.metric_name or 'metric'} to judge")
    difference, low, high = line.difference
    rows, won, lost = line.metric_rows, line.flips_won_rows, line.flips_lost_rows
    # Of another metric than accuracy the flips do not make the difference.
    if (
        won is None
        or lost is None
        or line.metric_name != "accuracy"
        or not math.isclose(difference, 100 * (won - lost) / rows, abs_tol=1e-6)
    ):
        won = lost = None
    return judge_drop(difference, low, high, budget_points, rows, won=won, lost=lost)


def rows_to_decide(
    difference_points: float,
    low: float,
    high: float,
    budget_points: float,
    rows: int,
    *,
    won: int | None = None,
    lost: int | None = None,
) -> int | None:
    """Return how many rows in all would decide with a chance of 80%, if the true difference is the observed one.

    The usual sample size of a paired difference: the smallest N at which the expected interval clears the budget by
    0.84 standard errors, |budget - drop| >= (1.96 + 0.84) * sd / sqrt(N). For accuracy, in shares of the rows,
    sd**2 = won + lost - (won - lost)**2, and the interval is Bonett and Price's, as in
    :func:`compress.evaluation.metrics.paired_difference`; Connor (1987, Biometrics 43) gives the same without their two
    added rows. For other metrics sd is read from the side of the interval that crosses the budget, which shrinks as 1 /
    sqrt(N).

    It is meant for a fresh set of N rows. Adding rows to those at hand decides a little more often, because the first
    ones already show the difference; but who looks after every batch of rows errs more often than 5%.

    Returns:
        None where it would take more than a million rows: the loss is then the budget, as far as anyone can tell.
    """
    from scipy.stats import norm

    confidence, power = float(norm.ppf((1 + CONFIDENCE) / 2)), float(norm.ppf(POWER))
    is_within = difference_points >= -budget_points

    def clears(n: int) -> bool:
        if won is None or lost is None:
            centre = difference_points / 100
            half_width = (difference_points - low if is_within else high - difference_points) / 100
            half = half_width * math.sqrt(rows / n)
            error = half / confidence
        else:
            share_won, share_lost = won / rows, lost / rows
            p_won, p_lost = (share_won * n + 1) / (n + 2), (share_lost * n + 1) / (n + 2)
            centre = p_won - p_lost
            half = confidence * math.sqrt((p_won + p_lost - centre**2) / (n + 2))
            error = math.sqrt((share_won + share_lost - (share_won - share_lost) ** 2) / n)
        distance = centre + budget_points / 100
        return (distance if is_within else -distance) >= half + power * error

    found = bisect_left(range(rows + 1, MOST_ROWS + 1), True, key=clears) + rows + 1
    return found if found <= MOST_ROWS else None


def judge_speedup(value: float, low: float, high: float, minimum: float) -> Verdict:
    """Judge a speed-up (2.0 is twice as fast) with its 95% interval."""
    is_near = abs(value - minimum) <= NARROWEST * value
    more = "the budget is the speed-up; another benchmark will hardly decide" if is_near else NARROWER
    return at_least(low, high, minimum, more)


def at_least(low: float, high: float, least: float, more: str) -> Verdict:
    """Judge by its 95% interval what is not to be below ``least``; where that is open, ``more`` would decide."""
    if low >= least:
        return Verdict(WITHIN)
    return Verdict(WORSE) if high < least else Verdict(UNDECIDED, more)


def _rounded_up(value: float) -> int:
    """Round up to two digits, and to tens at least: more would pretend to know."""
    step: int = 10 ** max(1, math.floor(math.log10(max(value, 1))) - 1)
    return math.ceil(value / step) * step
