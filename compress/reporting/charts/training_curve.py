"""How models were trained: validation score and loss over steps, each student beside its control."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from compress.benchmarking.results.formatting import in_percent, metric_title, shown
from compress.benchmarking.results.schema import Measurement
from compress.models.training_log import TrainingLog, series
from compress.reporting.charts import svg
from compress.reporting.charts.svg import Picture
from compress.reporting.tables.cells import EMPTY, Cell, number

HEADINGS = ["Model", "Phases", "Steps", "Best step", "Best score", "Last loss"]
NAMED = 4  # phases whose names the table has room for
DRAWN = 120  # points of a loss
LOGARITHMIC_FROM = 10  # the largest loss over the smallest


@dataclass(frozen=True)
class Trainings:
    """Charts of each model with its control, and the table: ``headings`` and one list of cells a model."""

    pictures: list[list[Picture]]
    headings: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class _Curve:
    """A training with its phases one after the other: ``breaks`` are the steps at which one ended."""

    log: TrainingLog
    losses: list[tuple[int, float]]
    scores: list[tuple[int, float]]
    breaks: list[int]
    steps: int

    @classmethod
    def of(cls, log: TrainingLog) -> "_Curve":
        losses, scores, ends = list[tuple[int, float]](), list[tuple[int, float]](), [0]
        for _, lines in log.phases:
            losses += [(ends[-1] + step, value) for step, value in series(lines, "loss")]
            scores += [(ends[-1] + step, value) for step, value in series(lines, "validation")]
            ends.append(ends[-1] + max(line["step"] for line in lines))
        return cls(log, losses, scores, ends[1:-1], ends[-1])

    @property
    def best(self) -> tuple[int, float] | None:
        return max(self.scores, key=lambda point: point[1], default=None)

    def validation(self) -> svg.Series:
        scale = 100 if in_percent(self.log.metric) else 1
        points = [(step, scale * value) for step, value in self.scores]
        kept = [number for number, point in enumerate(self.scores) if point == self.best]
        return svg.Series(self.log.name, points, dots=kept[:1], breaks=self.breaks)

    def loss(self) -> svg.Series:
        points = list[tuple[float, float]]()
        for _, phase in groupby(self.losses, lambda point: bisect_left(self.breaks, point[0])):
            own = list(phase)
            size = math.ceil(len(own) * (len(self.breaks) + 1) / DRAWN)
            parts = [own[first : first + size] for first in range(0, len(own), size)]
            points += [(part[-1][0], fmean(value for _, value in part)) for part in parts]
        return svg.Series(self.log.name, points, dots=() if len(points) > 1 else None, breaks=self.breaks)


def trainings_of(logs: Sequence[TrainingLog], lines: Sequence[Measurement]) -> Trainings | None:
    """Return how models were trained; result lines say which of them is the control of which."""
    if not logs:
        return None
    curves = [_Curve.of(log) for log in logs]
    by_name = {curve.log.name: curve for curve in curves}
    found = [(line.control_of, line.model) for line in lines] + [(line.model, line.control) for line in lines]
    controls = {model: control for model, control in found if model in by_name and control in by_name}
    groups = [
        [curve, by_name[controls[curve.log.name]]] if curve.log.name in controls else [curve]
        for curve in curves
        if curve.log.name not in controls.values()
    ]
    pictures = [drawn for group in groups if (drawn := _pictures(group))]
    return Trainings(pictures, HEADINGS, [_cells(curve) for curve in curves])


def _pictures(curves: Sequence[_Curve]) -> list[Picture]:
    """Return the charts of a model, first in the list, and of its control."""
    first = curves[0]
    scored = [
        one for one in curves if one.scores and (one.log.metric, one.log.split) == (first.log.metric, first.log.split)
    ]
    whole = (0, max(one.steps for one in curves))  # both charts have the same steps
    scores, losses = [one.validation() for one in scored], [one.loss() for one in curves if one.losses]
    found = []
    if first.scores:
        title, y_label = f"Validation of {first.log.name}", metric_title(first.log.metric or "score")
        found.append(svg.line_chart(scores, title=title, x_label="steps", y_label=y_label, x_holds=whole))
    if losses:
        values = [value for one in losses for _, value in one.points]
        # Losses of several phases, and of the control, differ in size.
        log = "y" if min(values) > 0 and max(values) > LOGARITHMIC_FROM * min(values) else ""
        title = f"Loss of {first.log.name}"
        found.append(svg.line_chart(losses, title=title, x_label="steps", y_label="loss", log=log, x_holds=whole))
    return found


def _cells(curve: _Curve) -> list[Cell]:
    best, score, names = curve.best, EMPTY, [name for name, _ in curve.log.phases]
    if best:
        scale = 100 if in_percent(curve.log.metric) else 1
        small = f"{curve.log.metric} on {curve.log.split}" if curve.log.metric else curve.log.split
        score = Cell(shown(best[1], curve.log.metric), small, scale * best[1])
    return [
        Cell(curve.log.name, "", curve.log.name),
        number(len(names) or 1, str, small=", ".join(names) if 1 < len(names) <= NAMED else ""),
        number(curve.steps, "{:,}".format),
        number(best[0] if best else None, "{:,}".format),
        score,
        number(curve.losses[-1][1] if curve.losses else None, "{:.4g}".format),
    ]
