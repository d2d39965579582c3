"""Trials of a search: shapes with their figures, who of them is promoted, and who wins.

*Promotion* is successive halving: many students are trained for few steps, and the best third of them for three times
as many (Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
arXiv:1502.07943). Every rung is a whole training whose learning rate falls to 0 within its own steps: a score in the
middle of a longer schedule says less about its end. Who is promoted follows from what wins in the end. Without any
limit that is a matter of two objectives: fronts are promoted one after the other. Where an accuracy drop is allowed,
and the fastest student wins, so it is among those in reach of it; the others come last. On a short schedule all
students are below the teacher: what is in reach is counted from the best student of the rung. Where speed or size alone
are limited, the best metric wins, and is promoted.

*The winner* is, of those whose point estimates on validation rows are within all that was asked,

* where an accuracy drop was allowed, the fastest;
* where only speed or size was asked, the one with the best metric;
* where nothing was asked, the knee of the front (:func:`compress.evaluation.pareto.knee`).

How certain the allowed drop is by the paired interval is said beside it. The winner of many looks better on the rows
that chose it than it is; test rows, which took no part, tell.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from compress.evaluation.pareto import Points, knee, non_dominated, ranked
from compress.searching.budget import SearchBudget, ShapeTiming, ValidationScore
from compress.searching.space import Shape

REDUCTION = 3
RUNGS = (1 / 9, 1 / 3, 1.0)  # shares of a recipe's own steps
LAST = len(RUNGS) - 1
_MARGIN = 0.1  # of the range, by which the reference point of the hypervolume lies below the worst


@dataclass(frozen=True)
class TrainedRung:
    """A student that was trained for the steps of a rung, and judged as it is deployed: exported, or in int8.

    ``seconds`` are those of the whole work; ``training_seconds`` alone grow with the steps. ``size_bytes`` may be more
    than was found when the shape was timed, with the vocabulary of a part of the text.
    """

    rung: int
    steps: int
    seconds: float
    training_seconds: float
    size_bytes: int
    score: ValidationScore


@dataclass
class Trial:
    """A shape that was tried."""

    number: int
    shape: Shape
    timing: ShapeTiming
    rungs: list[TrainedRung] = field(default_factory=list)
    missed: Sequence[str] = ()  # limits of speed and size, in words
    refused: str = ""  # why it was not trained further, though it is within the limits

    def add(self, trained: TrainedRung) -> None:
        """Add what is known of the next rung."""
        self.rungs.append(trained)
        self.timing = replace(self.timing, size_bytes=trained.size_bytes)

    @property
    def ended(self) -> str:
        """Why it ended, in words."""
        if self.missed:
            return "; ".join(self.missed)
        reached = f"stopped at rung {self.last.rung + 1}" if self.rungs else "not trained"
        if self.refused:
            return f"{reached}: {self.refused}"
        return "done" if self.is_complete else reached if self.rungs else f"{reached}: there was no time"

    @property
    def last(self) -> TrainedRung:
        """What is known of the longest training."""
        return self.rungs[-1]

    @property
    def score(self) -> ValidationScore:
        return self.last.score

    @property
    def is_complete(self) -> bool:
        return bool(self.rungs) and self.last.rung == LAST

    def value_at(self, rung: int) -> float | None:
        """Return the metric at a rung, None where it was not trained for that one."""
        return next((one.score.value for one in self.rungs if one.rung == rung), None)

    def seconds_for(self, steps: int) -> float:
        """Return about how long the work of more steps will take."""
        training = self.last.training_seconds
        return max(0.0, self.last.seconds - training) + training * steps / self.last.steps

    @property
    def row(self) -> dict[str, Any]:
        """The trial as JSON values, the longest training last."""
        timing = self.timing
        row: dict[str, Any] = {
            "trial": self.number,
            "name": self.shape.name,
            "family": self.shape.family,
            "precision": self.shape.precision,
            "options": dict(self.shape.options),
            "speedup": timing.speedup,
            "low_speedup": timing.low,
            "high_speedup": timing.high,
            "latency_ms": timing.latency_ms,
            "teacher_ms": timing.teacher_ms,
            "size_bytes": timing.size_bytes,
            "rungs": [
                {"share": RUNGS[one.rung], "steps": one.steps, "seconds": one.seconds, **asdict(one.score)}
                for one in self.rungs
            ],
            "ended": self.ended,
        }
        return row | ({"steps": self.last.steps, **asdict(self.score)} if self.rungs else {})


def floor(values: Sequence[float], teacher: float, allowed_drop: float | None) -> float:
    """Return the least metric of the students of a rung with which one may come within an allowed drop, in points."""
    return -math.inf if allowed_drop is None else min(teacher, max(values, default=teacher)) - allowed_drop / 100


def promoted(count: int) -> int:
    """Return how many of so many students reach the next rung."""
    return math.ceil(count / REDUCTION)


def promotion_order(points: Points, least: float, *, metric_wins: bool) -> list[int]:
    """Return the numbers of a rung's students, the first to be promoted first.

    Args:
        points: the logarithm of the speed-up, and the metric (0.90, not 90).
        least: the metric that is in reach, as :func:`floor` returns it.
        metric_wins: whether of the students within the limits the one with the best metric is wanted.
    """
    by_metric = sorted(range(len(points)), key=lambda index: (-points[index][1], -points[index][0], index))
    if metric_wins or not points:
        return by_metric
    within = [index for index, (_, value) in enumerate(points) if value >= least]
    chosen = [points[index] for index in within]
    low, high = np.min(chosen, axis=0), np.max(chosen, axis=0)
    speed, metric = (low - _MARGIN * (high - low) - 1e-9).tolist()
    ahead = [within[index] for index in ranked(chosen, (speed, metric))]
    return ahead + [index for index in by_metric if index not in ahead]


def objectives(one: Trial) -> tuple[float, float]:
    """Return what is maximised: the logarithm of the speed-up, and the metric."""
    return math.log2(one.timing.speedup), one.score.value


def front_of(judged: Sequence[Trial]) -> list[Trial]:
    """Return the candidates that no other is faster and better than, the fastest first."""
    found = non_dominated([objectives(one) for one in judged])
    return sorted((judged[index] for index in found), key=lambda one: -one.timing.speedup)


def choose(judged: Sequence[Trial], budget: SearchBudget) -> Trial | None:
    """Return the winner, None where no candidate is within all that was asked."""
    if judged and not budget.asked:
        return judged[knee([objectives(one) for one in judged])]
    within = [one for one in judged if budget.met_by(one.score, one.timing)]
    return max(within, key=lambda one: objectives(one)[:: -1 if budget.metric_wins else 1], default=None)


def closest(judged: Sequence[Trial], budget: SearchBudget) -> Trial | None:
    """Return the candidate that lacks least: first in points, then in doublings of speed and size."""
    return min(judged, key=lambda one: (budget.shortfall(one.score), budget.beyond(one.timing)), default=None)


def closest_shape(shapes: Sequence[Trial], budget: SearchBudget) -> Trial | None:
    """Return the shape that lacks least in doublings of speed and size, of equal ones the fastest."""
    return min(shapes, key=lambda one: (budget.beyond(one.timing), -one.timing.speedup), default=None)
