"""Which candidate a search returns.

Of those whose point estimates on validation rows are within all that was asked:

* where an accuracy drop was allowed, the fastest;
* where only speed or size was asked, the one with the best metric;
* where nothing was asked, the knee of the front (:func:`compress.evaluation.pareto.knee`).

How certain the allowed drop is by the paired interval is said beside it. The winner of many looks better on the rows
that chose it than it is; test rows, which took no part, tell.
"""

import math
from collections.abc import Sequence

from compress.evaluation.pareto import knee, non_dominated
from compress.searching.budget import SearchBudget
from compress.searching.trials import Trial


def objectives(one: Trial) -> tuple[float, float]:
    """Return what is maximised: the logarithm of the speed-up, and the metric."""
    return math.log2(one.timing.speedup), one.score.value


def front_of(judged: Sequence[Trial]) -> list[Trial]:
    """Return the candidates that no other is faster and better than, the fastest first."""
    found = non_dominated([objectives(one) for one in judged])
    return sorted((judged[index] for index in found), key=lambda one: -one.timing.speedup)


def choose(judged: Sequence[Trial], budget: SearchBudget) -> Trial | None:
    """Return the winner, None where no candidate is within all that was asked."""
    within = [one for one in judged if budget.met_by(one.score, one.timing)]
    if not within:
        return None
    if not budget.asked:
        return judged[knee([objectives(one) for one in judged])]
    return max(within, key=lambda one: objectives(one)[:: -1 if budget.metric_wins else 1])


def closest(judged: Sequence[Trial], budget: SearchBudget) -> Trial | None:
    """Return the candidate that lacks least: first in points, then in doublings of speed and size."""
    return min(judged, key=lambda one: (budget.shortfall(one.score), budget.beyond(one.timing)), default=None)


def closest_shape(shapes: Sequence[Trial], budget: SearchBudget) -> Trial | None:
    """Return the shape that lacks least in doublings of speed and size, of equal ones the fastest."""
    return min(shapes, key=lambda one: (budget.beyond(one.timing), -one.timing.speedup), default=None)
