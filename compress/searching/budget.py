"""What is asked of a student, and how long a search may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from compress.benchmarking.results.formatting import in_points, megabytes, milliseconds, points, times, with_span
from compress.errors import CompressError

if TYPE_CHECKING:  # both import torch
    from compress.searching.judging import ValidationScore
    from compress.searching.shapes import ShapeTiming

DEFAULT_TIME_LIMIT_S = 7200.0


@dataclass(frozen=True)
class SearchBudget:
    """What a student must meet; what is None is not asked for.

    Args:
        max_accuracy_drop: points of the metric below the teacher on validation rows (0.90 to 0.89 is one point).
        max_latency_ms: median time of a row by itself.
        min_speedup: how many times as fast as the teacher in torch, a row at a time.
        max_size_mb: weights on disk, in millions of bytes.
    """

    max_accuracy_drop: float | None = None
    max_latency_ms: float | None = None
    min_speedup: float | None = None
    max_size_mb: float | None = None

    def check(self) -> None:
        """Refuse values that no student meets, or that are no numbers."""
        for name, value in asdict(self).items():
            zero = name == "max_accuracy_drop"
            if value is not None and not (0 < value < math.inf or zero and value == 0):
                option, allowed = f"--{name.replace('_', '-')}", "0 or more" if zero else "above 0"
                raise CompressError(f"{option} {value:g} is not possible; give a number {allowed}, or leave it out")

    @property
    def asked(self) -> dict[str, float]:
        """What is asked for, by its name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

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
        """Return what is asked for in words."""
        drop, latency, speedup, size = asdict(self).values()
        said = [
            "" if drop is None else f"at most {in_points(drop)} below the teacher",
            "" if latency is None else f"at most {latency:g} ms a row",
            ""
            if speedup is None
            else f"at least {times(speedup)} as fast as {'it' if drop is not None else 'the teacher'}",
            "" if size is None else f"at most {size:g} MB",
        ]
        return ", ".join(filter(None, said)) or "nothing"


@dataclass(frozen=True)
class SearchSettings:
    """When a search ends, and what its report repeats.

    Args:
        trials: train so many shapes at most; those that do not meet the limits of speed and size do not count.
        time_limit_s: seconds of timing and training, after the teacher has labelled the text; None for no limit with
            ``trials``, else two hours.
        command: what was typed.
        typed: the options that name its data and how it computes, for the commands that make the winner again.
    """

    trials: int | None = None
    time_limit_s: float | None = None
    command: str = ""
    typed: Mapping[str, Any] = field(
        default_factory=lambda: {"teacher": "DIR", "unlabeled": "FILE", "train": "FILE", "validation": "FILE"}
    )

    def check(self) -> None:
        """Refuse limits that allow nothing."""
        if self.trials is not None and self.trials < 1:
            raise CompressError(f"--trials {self.trials} trains nothing; give 1 or more")
        if self.time_limit_s is not None and not 0 < self.time_limit_s < math.inf:
            raise CompressError(f"--time-limit {self.time_limit_s:g} s leaves no time; give one such as 2h or 30m")

    @property
    def seconds(self) -> float:
        """The time limit, infinite where only trials count."""
        if self.time_limit_s is not None:
            return self.time_limit_s
        return DEFAULT_TIME_LIMIT_S if self.trials is None else math.inf

    @property
    def request(self) -> dict[str, Any]:
        return {"trials": self.trials, "time_limit_s": self.time_limit_s}
