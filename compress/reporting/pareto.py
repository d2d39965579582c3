"""The picture of a report: metric against speed-up, with the Pareto front.

It is drawn for a logarithmic and a linear axis at once; the page's style sheet shows one of them, so that the page is
complete without a script. What has no metric (reference models) is a tick on the speed axis, and what has no speed
(published figures) a mark at the right edge. What lies far below everything else is drawn at the bottom with an arrow,
and at the edge where its speed is out of range too.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import count, in_percent, megabytes, points, shown_metric, span, times
from compress.benchmarking.results.schema import Measurement
from compress.escaping.markup import markup_text
from compress.evaluation.pareto import non_dominated
from compress.inference.speedup_intervals import Interval
from compress.recipes import known_student
from compress.reporting.svg import Axis, Canvas, both_sizes, document, frame, horizontal_ticks, vertical_ticks
from compress.reporting.tables import setting_text


@dataclass(frozen=True)
class Marker:
    """``path`` is the outline of its mark around 0, 0 in pixels; ``colour`` a variable of the charts' style."""

    meaning: str
    path: str
    colour: str
    hollow: bool = False


MARKERS: Mapping[str, Marker] = {
    "teacher": Marker("what the models are compared with", "M0-8 8 0 0 8-8 0z", "--c1"),
    "model": Marker("made from the teacher", "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z", "--c0"),
    "cascade": Marker(
        "models of which the next answers what the first is not sure of", "M0-7 7 5-7 5z M-7 1 7 1", "--c0"
    ),
    "control": Marker(
        "the same student without distillation", "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z", "--c3", hollow=True
    ),
    "baseline": Marker("a cheap classifier fitted on gold labels only", "M0-7 7 6-7 6z", "--c2"),
    "competitor": Marker("the same model in another tool", "M-5.5-5.5h11v11h-11z", "--c4"),
    "reference-model": Marker("a published size with random weights: speed only", "M-2-8h4v16h-4z", "--faint"),
    "published": Marker(
        "the authors’ figure for the method, without a speed",
        "M0-8 2-2.5 8-2.5 3.2 1.2 5 7 0 3.4-5 7-3.2 1.2-8-2.5-2-2.5z",
        "--c0",
        hollow=True,
    ),
}
# In legends and where the shape needs no words.
ORDER = {name: index for index, name in enumerate(MARKERS)}


def symbol(name: str) -> str:
    """Return a kind's mark as a small picture for a legend; it says nothing to a screen reader, its label does."""
    return (
        '<svg class="chart symbol" viewBox="-10 -10 20 20" width="16" height="16" aria-hidden="true" focusable="false">'
        f'<g class="point {name}"><path class="mark" d="{MARKERS[name].path}"/></g></svg>'
    )


MODES = ("log", "linear")
_COLOURS = [f".chart .point.{name}{{--own:var({kind.colour})}}" for name, kind in MARKERS.items()]
_OUTLINES = [
    f".chart .point.{name} .mark{{fill:var(--paper);stroke:var(--own);stroke-width:2}}"
    for name, kind in MARKERS.items()
    if kind.hollow
]
_RULES = "\n".join(_COLOURS + _OUTLINES)
STYLE = f"""
.chart .point{{transition:transform .35s;transform:translate(var(--log),var(--y))}}
.chart .point:focus{{outline:none}}.chart .point .bars{{opacity:.22;stroke:var(--own);stroke-width:1.5}}
.chart .point:hover .bars,.chart .point:focus .bars{{opacity:1}}
.chart .point .mark{{fill:var(--own);stroke:var(--paper);stroke-width:1.5}}
.chart .front{{fill:none;stroke:var(--c0);stroke-width:1.5;stroke-dasharray:5 4;opacity:.75}}
.chart .one{{stroke:var(--faint);stroke-width:1;stroke-dasharray:2 3}}
.chart .point .arrow{{fill:none;stroke:var(--own);stroke-width:2}}
.chart .point .name{{font-size:12px;paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}}
.chart .on-linear{{display:none}}
{_RULES}
.chart .point:focus-visible .mark{{stroke:var(--ink);stroke-width:3}}
"""
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

    def height(self, point: Point) -> float:
        bottom = self.canvas.bottom
        return min(self.y.place(point.metric.value), bottom - 10) if point.metric else bottom

    def is_sunk(self, point: Point) -> bool:
        return point.metric is not None and self.y.place(point.metric.value) > self.canvas.bottom


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both speed and metric, by rising speed; controls do not count."""
    drawn = [(p.speedup.value, p.metric.value, p) for p in points if p.kind != "control" and p.speedup and p.metric]
    best = non_dominated([(speed, metric) for speed, metric, _ in drawn])
    return [point for _, _, point in sorted((drawn[index] for index in best), key=itemgetter(0))]


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
    y = Axis.over(heights, canvas.bottom, canvas.top, margin=0.15)
    plot = _Plot(axes, y, canvas)
    parts = [*frame(canvas, title, "times as fast as the teacher in torch", y_label), *horizontal_ticks(canvas, y)]
    best = [point for point in front(points) if not plot.is_sunk(point)]
    for mode, x in axes.items():
        parts += vertical_ticks(canvas, x, prefix="×", group=f"on-{mode}")
        line = " ".join(f"{plot.x(p, mode)},{plot.height(p)}" for p in best)
        parts.append(f'<polyline class="front on-{mode}" points="{line}"/>')
        one = x.place(1.0)
        parts.append(f'<line class="one on-{mode}" x1="{one}" x2="{one}" y1="{canvas.top}" y2="{canvas.bottom}"/>')
    named = {mode: _labels(points, plot, mode) for mode in MODES}
    for index in sorted(range(len(points)), key=lambda i: -ORDER[points[i].kind]):  # the teacher on top
        labels = "".join(named[mode].get(index, "") for mode in MODES)
        parts.append(_drawn(points[index], plot, labels))
    return document(canvas, title, parts, description=f"{len(points)} marks", style=STYLE, role="group")


def _lowest(points: Sequence[Point], scale: float) -> float:
    """Return the metric down to which the axes reach: a mark far away from all others would squeeze them."""
    known = [(p.metric.value, p.kind) for p in points if p.metric]
    top = next((value for value, kind in known if kind == "teacher"), known[0][0] if known else 0.0)
    falls = sorted(abs(top - value) for value, kind in known if kind in {"model", "cascade", "competitor"})
    usual = falls[len(falls) // 2] if falls else 0.0
    return top - max(SHALLOWEST_SHARE * scale, 3 * usual) if known else 0.0


def _drawn(point: Point, plot: _Plot, labels: str) -> str:
    """Return a mark with both intervals as lines through it, cut off at the frame."""
    canvas, here, bars = plot.canvas, plot.height(point), ""
    if point.metric and not plot.is_sunk(point):
        ends = (point.metric.high, point.metric.low)
        top, bottom = (min(max(plot.y.place(end), canvas.top), canvas.bottom) - here for end in ends)
        bars += f'<line class="bars" x1="0" x2="0" y1="{top:.1f}" y2="{bottom:.1f}"/>'
    for mode in MODES if point.speedup else ():
        left, right = (plot.across(mode, end) - plot.x(point, mode) for end in (point.speedup or (0, 0, 0))[1:])
        bars += f'<line class="bars on-{mode}" x1="{left:.1f}" x2="{right:.1f}" y1="0" y2="0"/>'
    at = "".join(f"--{mode}:{plot.x(point, mode)}px;" for mode in MODES)
    arrow = '<path class="arrow" d="M-4 11l4 5 4-5M0 8v8"/>' if plot.is_sunk(point) else ""
    return (
        f'<g class="point {markup_text(point.kind)}" tabindex="0" role="img" aria-label="{markup_text(point.caption)}" '
        f'style="{at}--y:{here}px">{bars}{arrow}<path class="mark" d="{MARKERS[point.kind].path}"/>{labels}</g>'
    )


def _labels(points: Sequence[Point], plot: _Plot, mode: str) -> dict[int, str]:
    """Return the names that find room: right of the mark, left, above or below; the others are told on hover."""
    canvas = plot.canvas
    marks = [(plot.x(p, mode), plot.height(p)) for p in points]
    taken = [(a - 9, b - 9, a + 9, b + 9) for a, b in marks]
    found, values = {}, [p.metric.value if p.metric else 0.0 for p in points]
    for index in sorted(range(len(points)), key=lambda i: (ORDER[points[i].kind], -values[i])):
        px, py = marks[index]
        width = 6.6 * len(points[index].name)
        for dx, dy, anchor, left in (
            (12, 4, "start", px + 10),
            (-12, 4, "end", px - 12 - width),
            (0, -13, "middle", px - width / 2),
            (0, 21, "middle", px - width / 2),
        ):
            low, high, right = py + dy - 12, py + dy + 3, left + width
            inside = canvas.left <= left and right <= canvas.width - 2
            inside = inside and canvas.top - 12 <= low and high <= canvas.bottom
            others = (box for place, box in enumerate(taken) if place != index)
            if inside and not any(left < c and a < right and low < d and b < high for a, b, c, d in others):
                taken.append((left, low, right, high))
                name = markup_text(points[index].name)
                found[index] = f'<text class="name on-{mode}" x="{dx}" y="{dy}" text-anchor="{anchor}">{name}</text>'
                break
    return found


@dataclass(frozen=True)
class PublishedPoint:
    """What authors reported of a method that is among the rows, and what we measure of it; all in percent.

    ``kept`` is of their own teacher, ``ours_kept`` of ours.
    """

    recipe: str
    dataset: str
    metric: str
    value: float
    teacher: float
    kept: float
    ours_kept: float
    source: str


def published_figures(lines: Sequence[Measurement]) -> list[PublishedPoint]:
    """Return the published figures of the models' recipes for this data and metric; none of a recipe not known here.

    A figure for other data would say nothing beside ours. Its split may differ, and is told with it.
    """
    models = [line for line in lines if line.kind == "model" and line.recipe and line.metric_kept_percent is not None]
    found = []
    for recipe, own in grouped(models, attrgetter("recipe")).items():
        best, student = max(own, key=lambda line: line.metric or 0.0), known_student(recipe)
        for one in student.published if student else ():
            name = re.escape(one.dataset.rpartition(" ")[0] or one.dataset)
            # As a word: RTE is in 'glue/RTE dev', not in 'forte'.
            is_same = re.search(rf"(?<!\w){name}(?!\w)", best.data, re.IGNORECASE)
            if is_same and one.metric == best.metric_name:
                kept, ours = 100 * one.value / one.teacher, best.metric_kept_percent or 0.0
                found.append(
                    PublishedPoint(recipe, one.dataset, one.metric, one.value, one.teacher, kept, ours, one.source)
                )
    return found


def marks(lines: Sequence[Measurement], published: Sequence[PublishedPoint]) -> list[Point]:
    """Return a mark for every line, and for every published figure."""
    runtimes = Counter(line.model for line in lines)
    found = [_mark(line, alone=runtimes[line.model] == 1) for line in lines]
    whole = [_scale(line) * line.metric for line in lines if line.kind == "teacher" and line.metric is not None]
    for one in published if whole else ():
        caption = (
            f"{one.recipe}, published: {one.value:g} {one.metric} on {one.dataset}, {one.kept:.1f}% of its teacher’s "
            f"{one.teacher:g}; drawn at that share of our teacher, without a speed. {one.source}"
        )
        height = one.kept / 100 * whole[0]
        found.append(Point(f"{one.recipe}, published", "published", None, Interval(height, height, height), caption))
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
    speed = f"{times(line.speedup)} ({span(*map(times, line.speedups[1:]))})"
    sizes = [f"{count(line.parameters)} parameters"] if line.parameters else []
    facts = ", ".join([speed, quality, *sizes, megabytes(line.size_bytes)])
    kind = "" if line.kind == "model" else f"; {line.kind}: {MARKERS[line.kind].meaning}"
    return Point(name, line.kind, line.speedups, metric, f"{line.model} ({setting_text(line)}): {facts}{kind}")
