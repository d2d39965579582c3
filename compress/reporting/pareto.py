"""The picture of a report: metric against speed-up, with the Pareto front.

It is drawn for a logarithmic and a linear axis at once; the page's style sheet shows one of them, so that the page is
complete without a script. What has no metric (reference models) is a tick on the speed axis, and what has no speed
(published figures) a mark at the right edge. What lies far below everything else is drawn at the bottom with an arrow,
and at the edge where its speed is out of range too.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import count, in_percent, megabytes, points, shown_metric, span, times
from compress.benchmarking.results.schema import Measurement
from compress.evaluation.pareto import non_dominated
from compress.inference.speedup_intervals import Interval
from compress.recipes import known_student
from compress.recipes.student import Published
from compress.reporting.rendering import MARKERS, ORDER, render
from compress.reporting.svg import Axis, Canvas, both_sizes
from compress.reporting.tables import setting_text

MODES = ("log", "linear")
SHALLOWEST_SHARE = 0.08  # of the metric's scale: how far below the teacher the plot reaches at least where marks do


@dataclass(frozen=True)
class Point:
    """A mark: ``kind`` is one of :data:`MARKERS`; the metric is on the scale of the axis.

    A reference model has no ``metric``, a published figure no ``speedup``.
    """

    name: str
    kind: str
    speedup: Interval | None
    metric: Interval | None
    caption: str


@dataclass(frozen=True)
class _Plot:
    """Where things lie: both horizontal axes, the vertical one, and the canvas."""

    axes: dict[str, Axis]
    y: Axis
    canvas: Canvas

    def x(self, point: Point, mode: str) -> float:
        return self.across(mode, point.speedup.value) if point.speedup else self.canvas.right

    def across(self, mode: str, speedup: float) -> float:
        """Return the pixel of a speed, inside the frame."""
        return min(max(self.axes[mode].place(max(speedup, 1e-9)), self.canvas.left), self.canvas.right)

    def up(self, metric: float) -> float:
        """Return the pixel of a metric, inside the frame."""
        return min(max(self.y.place(metric), self.canvas.top), self.canvas.bottom)

    def height(self, point: Point) -> float:
        bottom = self.canvas.bottom
        return min(self.y.place(point.metric.value), bottom - 10) if point.metric else bottom

    def is_sunk(self, point: Point) -> bool:
        return point.metric is not None and self.y.place(point.metric.value) > self.canvas.bottom


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both speed and metric, by rising speed; controls do not count."""
    drawn = [(p.speedup.value, p.metric.value, p) for p in points if p.kind != "control" and p.speedup and p.metric]
    best = non_dominated([(speed, metric) for speed, metric, _ in drawn])
    return [drawn[index][-1] for index in sorted(best, key=lambda index: drawn[index][0])]


@both_sizes
def pareto_chart(canvas: Canvas, points: Sequence[Point], *, title: str, y_label: str, scale: float = 100.0) -> str:
    """Draw metric against speed-up as a standalone SVG; every mark can take the focus and says what it is.

    ``scale`` is the metric's range on the axis: 100 for percent, 1 for a correlation.
    """
    lowest = _lowest(points, scale)
    shown = [p for p in points if p.metric is None or p.metric.value >= lowest]
    speeds = [1.0, *(p.speedup.value for p in shown if p.speedup)]
    axes = {mode: Axis.over(speeds, canvas.left, canvas.right, log=mode == "log") for mode in MODES}
    heights = [p.metric.value for p in shown if p.metric] or [0.0, scale]
    plot = _Plot(axes, Axis.over(heights, canvas.bottom, canvas.top, margin=0.15), canvas)
    places = [_names(points, plot, mode) for mode in MODES]
    drawn = [
        (point, {mode: found[index] for mode, found in zip(MODES, places, strict=True) if index in found})
        for index, point in enumerate(points)
    ]
    drawn.sort(key=lambda one: -ORDER[one[0].kind])  # the teacher on top
    best = [point for point in front(points) if not plot.is_sunk(point)]
    labels = {"title": title, "y_label": y_label, "says": f"{len(points)} marks"}
    return render("pareto.svg.j2", canvas=canvas, plot=plot, points=drawn, front=best, **labels)


def _lowest(points: Sequence[Point], scale: float) -> float:
    """Return the metric down to which the axes reach: a mark far away from all others would squeeze them."""
    known = [(p.metric.value, p.kind) for p in points if p.metric]
    top = next((value for value, kind in known if kind == "teacher"), known[0][0] if known else 0.0)
    falls = sorted(abs(top - value) for value, kind in known if kind in {"model", "cascade", "competitor"})
    usual = falls[len(falls) // 2] if falls else 0.0
    return top - max(SHALLOWEST_SHARE * scale, 3 * usual) if known else 0.0


def _names(points: Sequence[Point], plot: _Plot, mode: str) -> dict[int, tuple[float, float, str]]:
    """Return where names find room: right of the mark, left, above or below; the others are told on hover."""
    canvas, found = plot.canvas, dict[int, tuple[float, float, str]]()
    marks = [(plot.x(point, mode), plot.height(point)) for point in points]
    boxes = [(x - 9, y - 9, x + 9, y + 9) for x, y in marks]

    def is_free(index: int, box: tuple[float, float, float, float]) -> bool:
        left, low, right, high = box
        inside = canvas.left <= left and right <= canvas.width - 2 and canvas.top - 12 <= low and high <= canvas.bottom
        others = (other for place, other in enumerate(boxes) if place != index)
        return inside and not any(left < c and a < right and low < d and b < high for a, b, c, d in others)

    values = [point.metric.value if point.metric else 0.0 for point in points]
    for index in sorted(range(len(points)), key=lambda i: (ORDER[points[i].kind], -values[i])):
        (x, y), width = marks[index], 6.6 * len(points[index].name)
        lefts = {(12, 4, "start"): 10, (-12, 4, "end"): -12 - width}
        lefts |= {(0, -13, "middle"): -width / 2, (0, 21, "middle"): -width / 2}
        boxed = {at: (x + left, y + at[1] - 12, x + left + width, y + at[1] + 3) for at, left in lefts.items()}
        if at := next((at for at, box in boxed.items() if is_free(index, box)), None):
            boxes.append(boxed[at])
            found[index] = at
    return found


@dataclass(frozen=True)
class PublishedPoint:
    """What authors reported of a method that is among the rows; what they and we keep of our teachers, in percent."""

    recipe: str
    figure: Published
    kept: float
    ours_kept: float


def published_figures(lines: Sequence[Measurement]) -> list[PublishedPoint]:
    """Return the published figures of the models' recipes for this data and metric; none of a recipe not known here.

    A figure for other data would say nothing beside ours. Its split may differ, and is told with it.
    """
    models = [line for line in lines if line.kind == "model" and line.recipe and line.metric_kept_percent is not None]
    found = []
    for recipe, own in grouped(models, lambda line: line.recipe).items():
        best, student = max(own, key=lambda line: line.metric or 0.0), known_student(recipe)
        for one in student.published if student else ():
            name = re.escape(one.dataset.rpartition(" ")[0] or one.dataset)
            # As a word: RTE is in 'glue/RTE dev', not in 'forte'.
            is_same = re.search(rf"(?<!\w){name}(?!\w)", best.data, re.IGNORECASE)
            if is_same and one.metric == best.metric_name:
                found.append(
                    PublishedPoint(recipe, one, 100 * one.value / one.teacher, best.metric_kept_percent or 0.0)
                )
    return found


def marks(lines: Sequence[Measurement], published: Sequence[PublishedPoint]) -> list[Point]:
    models = [line.model for line in lines]
    found = [_mark(line, alone=models.count(line.model) == 1) for line in lines]
    whole = [_scale(line) * line.metric for line in lines if line.kind == "teacher" and line.metric is not None]
    for one in published if whole else ():
        figure, name, height = one.figure, f"{one.recipe}, published", one.kept / 100 * whole[0]
        caption = (
            f"{name}: {figure.value:g} {figure.metric} on {figure.dataset}, {one.kept:.1f}% of its teacher’s "
            f"{figure.teacher:g}; drawn at that share of our teacher, without a speed. {figure.source}"
        )
        found.append(Point(name, "published", None, Interval(height, height, height), caption))
    return found


def _scale(line: Measurement) -> float:
    return 100.0 if in_percent(line.metric_name) else 1.0


def _mark(line: Measurement, *, alone: bool) -> Point:
    name = "teacher" if line.kind == "teacher" else line.model
    if line.padding == "max_length":
        name = f"{name}, padded"
    elif not alone and not line.is_reference:
        name = f"{name} ({line.runtime})"
    metric, quality = None, "random weights, no metric"
    if line.metric is not None:
        ends = (line.metric if end is None else end for end in line.figure("metric")[1:])
        metric = Interval(*(_scale(line) * value for value in (line.metric, *ends)))
    if line.difference_points is not None:
        quality = f"{line.metric_name} {shown_metric(line)}, {points(line.difference_points)} points"
    speed = f"{times(line.speedups.value)} ({span(*map(times, line.speedups[1:]))})"
    sizes = [f"{count(line.parameters)} parameters"] if line.parameters else []
    facts = ", ".join([speed, quality, *sizes, megabytes(line.size_bytes)])
    kind = "" if line.kind == "model" else f"; {line.kind}: {MARKERS[line.kind].meaning}"
    return Point(name, line.kind, line.speedups, metric, f"{line.model} ({setting_text(line)}): {facts}{kind}")
