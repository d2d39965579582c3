"""The budget of a search, its trials with their figures, who of them is promoted, and who wins.

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from compress.benchmarking.results.formatting import in_points, megabytes, milliseconds, points, times, with_span
from compress.evaluation.pareto import Points, knee, non_dominated, ranked
from compress.fields import validated
from compress.inference.speedup_intervals import Interval
from compress.requests.training import DEFAULT_TIME_LIMIT_S, SearchLimits
from compress.searching.space import Shape

LIMITS = ("max_accuracy_drop", "max_latency_ms", "min_speedup", "max_size_mb")
REDUCTION = 3
RUNGS = (1 / 9, 1 / 3, 1.0)  # shares of a recipe's own steps
LAST = len(RUNGS) - 1
_MARGIN = 0.1  # of the range, by which the reference point of the hypervolume lies below the worst


@dataclass(frozen=True)
class ShapeTiming:
    """What a shape costs: its median latency a row, its speed-up over the teacher in torch, and its size on disk.

    ``fault`` says why it cannot be built, and is empty otherwise.
    """

    latency_ms: float = 0.0
    speedup: float = 0.0
    low: float = 0.0
    high: float = 0.0
    size_bytes: int = 0
    teacher_ms: float = 0.0
    fault: str = ""

    @property
    def interval(self) -> Interval:
        return Interval(self.speedup, self.low, self.high)


@dataclass(frozen=True)
class ValidationScore:
    """The metric on validation rows, and its difference to the teacher's in points with the paired 95% interval."""

    value: float
    points: float
    low: float
    high: float


@validated
class SearchBudget(SearchLimits):
    """What a student must meet, and when a search ends.

    Points are of the metric, below the teacher on validation rows (0.90 to 0.89 is one point); the latency is the
    median time of a row by itself; the speed-up is over the teacher in torch, a row at a time; the size is that of the
    weights on disk, in millions of bytes.
    """

    @property
    def asked(self) -> dict[str, float]:
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}

    @property
    def metric_wins(self) -> bool:
        """Whether the best metric is wanted within limits of speed and size, and not the fastest student."""
        return bool(self.asked) and self.max_accuracy_drop is None

    def excess(self, timing: ShapeTiming) -> dict[str, float]:
        """Return by how many doublings a shape is beyond each limit of speed and size; below 0 where it is within."""
        limits: Mapping[str, tuple[float | None, float | None]] = {
            "min_speedup": (self.min_speedup, timing.speedup),
            "max_latency_ms": (timing.latency_ms, self.max_latency_ms),
            "max_size_mb": (timing.size_bytes / 1e6, self.max_size_mb),
        }
        asked = {name: pair for name, pair in limits.items() if name in self.asked}
        return {name: math.log2(more / less) for name, (more, less) in asked.items() if more and less}

    def beyond(self, timing: ShapeTiming) -> float:
        """Return by how many doublings a shape is beyond its limits of speed and size, all together."""
        return sum(max(0.0, excess) for excess in self.excess(timing).values())

    def faults(self, timing: ShapeTiming) -> list[str]:
        """Return in words which limits of speed and size a shape does not meet, by its measured figures."""
        said = {
            "min_speedup": f"too slow: {with_span(timing.interval, times)} where {times(self.min_speedup or 0)} "
            "was asked",
            "max_latency_ms": f"too slow: {milliseconds(timing.latency_ms)} where {self.max_latency_ms or 0:g} ms was "
            "asked",
            "max_size_mb": f"too large: {megabytes(timing.size_bytes)} where {self.max_size_mb or 0:g} MB was asked",
        }
        return [said[name] for name, excess in self.excess(timing).items() if excess > 0]

    def shortfall(self, score: ValidationScore) -> float:
        """Return how many points the metric drops beyond what is allowed; 0 where it does not, or nothing is asked."""
        allowed = self.max_accuracy_drop
        return 0.0 if allowed is None else max(0.0, round(-score.points - allowed, 6))

    def met_by(self, score: ValidationScore, timing: ShapeTiming) -> bool:
        return not self.faults(timing) and self.shortfall(score) == 0

    def is_refuted(self, points: float, speedup: float, latency_ms: float) -> bool:
        """Tell whether new rows refute it: the better end of an interval is not enough."""
        drop, least, most = self.max_accuracy_drop, self.min_speedup, self.max_latency_ms
        too_slow = least is not None and speedup < least or most is not None and latency_ms > most
        return too_slow or (drop is not None and points < -drop)

    def certainty(self, score: ValidationScore, rows: int) -> str:
        """Say how certain the allowed drop is by the paired interval; nothing where no drop was given."""
        allowed = self.max_accuracy_drop
        if allowed is None:
            return ""
        if score.low >= -allowed:
            return f"certainly within {in_points(allowed)}"
        if score.points >= -allowed:
            return f"within {in_points(allowed)}, not certain with {rows:,} rows"
        certain = "certainly " if score.high < -allowed else ""
        return f"{certain}beyond {in_points(allowed)}: {points(score.points)}"

    def describe(self) -> str:
        than = "the teacher" if self.max_accuracy_drop is None else "it"
        said = {
            "max_accuracy_drop": f"at most {in_points(self.max_accuracy_drop or 0)} below the teacher",
            "max_latency_ms": f"at most {self.max_latency_ms or 0:g} ms a row",
            "min_speedup": f"at least {times(self.min_speedup or 0)} as fast as {than}",
            "max_size_mb": f"at most {self.max_size_mb or 0:g} MB",
        }
        return ", ".join(said[name] for name in self.asked) or "nothing"

    @property
    def seconds(self) -> float:
        """The time limit, infinite where only trials count."""
        return self.time_limit or (DEFAULT_TIME_LIMIT_S if self.trials is None else math.inf)


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
    number: int
    shape: Shape
    timing: ShapeTiming
    rungs: list[TrainedRung] = field(default_factory=list)
    missed: Sequence[str] = ()  # limits of speed and size, in words
    refused: str = ""  # why it was not trained further, though it is within the limits

    def add(self, trained: TrainedRung) -> None:
        self.rungs.append(trained)
        self.timing = replace(self.timing, size_bytes=trained.size_bytes)

    @property
    def ended(self) -> str:
        if self.missed:
            return "; ".join(self.missed)
        reached = f"stopped at rung {self.last.rung + 1}" if self.rungs else "not trained"
        if self.refused:
            return f"{reached}: {self.refused}"
        return "done" if self.is_complete else reached if self.rungs else f"{reached}: there was no time"

    @property
    def last(self) -> TrainedRung:
        return self.rungs[-1]

    @property
    def score(self) -> ValidationScore:
        return self.last.score

    @property
    def is_complete(self) -> bool:
        return bool(self.rungs) and self.last.rung == LAST

    def value_at(self, rung: int) -> float | None:
        return next((one.score.value for one in self.rungs if one.rung == rung), None)

    def seconds_for(self, steps: int) -> float:
        """Return about how long the work of more steps will take."""
        training = self.last.training_seconds
        return max(0.0, self.last.seconds - training) + training * steps / self.last.steps

    @property
    def row(self) -> dict[str, Any]:
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
