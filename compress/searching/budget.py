"""Search budget: what is measured of a student, the limits of accuracy, latency, speed and size, and what it meets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from compress.benchmarking.results.formatting import in_points, megabytes, milliseconds, points, times, with_span
from compress.inference.speedup_intervals import Interval
from compress.requests import request
from compress.requests.searching import DEFAULT_TIME_LIMIT_S, SearchLimits

LIMITS = ("max_accuracy_drop", "max_latency_ms", "min_speedup", "max_size_mb")


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


@request
class SearchBudget(SearchLimits):
    """What a student must meet, and when a search ends.

    Points are of the metric, below the teacher on validation rows (0.90 to 0.89 is one point); the latency is the
    median time of a row by itself; the speed-up is over the teacher in torch, a row at a time; the size is that of the
    weights on disk, in millions of bytes.
    """

    @property
    def asked(self) -> dict[str, float]:
        """What is asked for, by its name."""
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
        """Tell whether the point estimates are within all that is asked."""
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
        """Return the limits in words."""
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
        return self.time_limit_s or (DEFAULT_TIME_LIMIT_S if self.trials is None else math.inf)
