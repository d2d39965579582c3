"""What a measured difference, speed-up or latency means for a budget: within it, worse, or not to be decided yet.

A budget is held or broken only when the whole 95% interval lies on one side of it. Everything here is a pure function
of numbers, so the gate and the report judge alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from compress.benchmarking.results.schema import Measurement
from compress.evaluation.metrics import CONFIDENCE

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


def judge_drop(difference_points: float, low: float, high: float, budget_points: float, rows: int) -> Verdict:
    """Judge a paired difference, model minus reference in points, against the points that may be lost.

    Args:
        low, high: its paired 95% interval, in points.
        budget_points: largest loss allowed, 0 or more.
        rows: examples it was measured on.
    """
    if high < -budget_points:
        return Verdict(WORSE)
    if low >= -budget_points:
        return Verdict(WITHIN)
    needed = rows_to_decide(difference_points, low, high, budget_points, rows)
    if needed is None:
        return Verdict(UNDECIDED, "the loss is the budget; more examples will hardly decide")
    # Rounded up to two digits, and to tens at least: more would pretend to know.
    step = 10 ** max(1, math.floor(math.log10(needed - rows)) - 1)
    more = (
        f"about {math.ceil((needed - rows) / step) * step:,} more examples would decide (with a chance of {POWER:.0%})"
    )
    return Verdict(UNDECIDED, more)


def judge_drop_of(line: Measurement, budget_points: float) -> Verdict | None:
    """Judge a result line against its teacher; None where it has no metric to compare."""
    # What is asked for are rows, of which the words of a tagger's metric are no independent part.
    return None if line.difference is None else judge_drop(*line.difference, budget_points, line.data_rows)


class JudgedLines:
    """Lines that may be compared, each judged once against its teacher by a budget in points."""

    def __init__(self, lines: Sequence[Measurement], budget_points: float = 1.0) -> None:
        self.lines, self.budget_points = lines, budget_points
        self.verdicts = {id(line): judge_drop_of(line, budget_points) or Verdict("") for line in lines}

    def of(self, line: Measurement) -> Verdict:
        """Return the verdict on one of the lines; its outcome is empty where it has no metric."""
        return self.verdicts[id(line)]

    def _fastest(self, lines: Sequence[Measurement], outcome: str) -> Measurement | None:
        """Return the fastest of an outcome whose loss is no larger than the budget as far as its rows say."""
        good = [line for line in lines if self.of(line).outcome == outcome]
        good = [line for line in good if (line.difference_points or 0.0) >= -self.budget_points]
        return max(good, key=lambda line: line.speedups.value, default=None)

    @cached_property
    def best(self) -> Measurement | None:
        """The fastest model that is within the budget.

        Without any: the fastest whose loss is less than the budget though the data cannot show it; else the one that
        loses least, of those that may be within the budget if there are any.
        """
        models = [line for line in self.lines if line.is_compressed and line.difference is not None]
        return (
            self._fastest(models, WITHIN)
            or self._fastest(models, UNDECIDED)
            or max(models, key=lambda line: (self.of(line).outcome != WORSE, line.metric or 0.0), default=None)
        )

    @cached_property
    def faster(self) -> Measurement | None:
        """The fastest model that may be within the budget too, where it is surely faster than one that surely is."""
        best = self.best
        if best is None or self.of(best).outcome != WITHIN:
            return None
        models = [line for line in self.lines if line.is_compressed and line.speedups.low > best.speedups.high]
        return self._fastest(models, UNDECIDED)


def rows_to_decide(difference_points: float, low: float, high: float, budget_points: float, rows: int) -> int | None:
    """Return how many rows in all would decide with a chance of 80%, if the true difference is the observed one.

    The usual sample size of a paired difference: the smallest N at which the expected interval clears the budget by
    0.84 standard errors, |budget - drop| >= (1.96 + 0.84) * sd / sqrt(N). sd is read from the side of the interval that
    crosses the budget, which shrinks as 1 / sqrt(N); so it holds for any metric, and for rows that are not independent.

    It is meant for a fresh set of N rows. Adding rows to those at hand decides a little more often, because the first
    ones already show the difference; but who looks after every batch of rows errs more often than 5%.

    Returns:
        None where it would take more than a million rows: the loss is then the budget, as far as anyone can tell.
    """
    from scipy.stats import norm

    distance = abs(difference_points + budget_points)
    half_width = difference_points - low if difference_points >= -budget_points else high - difference_points
    errors = 1 + float(norm.ppf(POWER) / norm.ppf((1 + CONFIDENCE) / 2))
    if distance * math.sqrt(MOST_ROWS / rows) < errors * half_width:
        return None
    return max(rows + 1, math.ceil(rows * (errors * half_width / distance) ** 2))


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
