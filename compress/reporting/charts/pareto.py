"""The picture of a report: metric against speed-up, with the Pareto front.

It is drawn for a logarithmic and a linear axis at once; the page's style sheet shows one of them, so that the page is
complete without a script. What has no metric (reference models) is a tick on the speed axis, and what has no speed
(published figures) a mark at the right edge. What lies far below everything else is drawn at the bottom with an arrow,
and at the edge where its speed is out of range too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compress.escaping.markup import markup_text
from compress.evaluation.pareto import non_dominated
from compress.reporting.charts.svg import Axis, Canvas, both_sizes, document, frame, horizontal_ticks, vertical_ticks


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


def _style() -> str:
    """Return the style rules that give every kind its colour, and hollow ones their outline."""
    rules = [f".chart .point.{name}{{--own:var({kind.colour})}}" for name, kind in MARKERS.items()]
    rules += [
        f".chart .point.{name} .mark{{fill:var(--paper);stroke:var(--own);stroke-width:2}}"
        for name, kind in MARKERS.items()
        if kind.hollow
    ]
    return "\n".join(rules)


def symbol(name: str) -> str:
    """Return a kind's mark as a small picture for a legend; it says nothing to a screen reader, its label does."""
    return (
        '<svg class="chart symbol" viewBox="-10 -10 20 20" width="16" height="16" aria-hidden="true" focusable="false">'
        f'<g class="point {name}"><path class="mark" d="{MARKERS[name].path}"/></g></svg>'
    )


MODES = ("log", "linear")
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
{_style()}
.chart .point:focus-visible .mark{{stroke:var(--ink);stroke-width:3}}
"""
SHALLOWEST_SHARE = 0.08  # of the metric's scale: how far below the teacher the plot reaches at least where marks do


@dataclass(frozen=True)
class Point:
    """A mark: ``kind`` is one of :data:`MARKERS`; the metric is on the scale of the
    axis.

    A reference model has no ``metric``, a published figure no ``speedup``; their intervals are not read.
    """

    name: str
    kind: str
    speedup: float | None
    speedup_low: float
    speedup_high: float
    metric: float | None
    metric_low: float
    metric_high: float
    caption: str


@dataclass(frozen=True)
class _Plot:
    """Where things lie: both horizontal axes, the vertical one, and the canvas."""

    axes: dict[str, Axis]
    y: Axis
    canvas: Canvas

    def x(self, point: Point, mode: str) -> float:
        if point.speedup is None:
            return self.canvas.right
        return min(max(self.axes[mode].place(point.speedup), self.canvas.left), self.canvas.right)

    def height(self, point: Point) -> float:
        if point.metric is None:
            return self.canvas.bottom
        return min(self.y.place(point.metric), self.canvas.bottom - 10)

    def sunk(self, point: Point) -> bool:
        return point.metric is not None and self.y.place(point.metric) > self.canvas.bottom


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both speed and metric, by rising speed; controls do not count."""
    drawn = [p for p in points if p.kind != "control" and p.speedup is not None and p.metric is not None]
    best = non_dominated([(p.speedup or 0.0, p.metric or 0.0) for p in drawn])
    return sorted((drawn[index] for index in best), key=lambda p: p.speedup or 0.0)


@both_sizes
def pareto_chart(canvas: Canvas, points: Sequence[Point], *, title: str, y_label: str, scale: float = 100.0) -> str:
    """Draw metric against speed-up as a standalone SVG; every mark can take the focus and says what it is.

    ``scale`` is the metric's range on the axis: 100 for percent, 1 for a correlation.
    """
    lowest = _lowest(points, scale)
    shown = [p for p in points if p.metric is None or p.metric >= lowest]
    speeds = [1.0, *(p.speedup for p in shown if p.speedup is not None)]
    axes = {mode: Axis.over(speeds, canvas.left, canvas.right, log=mode == "log") for mode in MODES}
    heights = [p.metric for p in shown if p.metric is not None] or [0.0, scale]
    y = Axis.over(heights, canvas.bottom, canvas.top, margin=0.15)
    plot = _Plot(axes, y, canvas)
    parts = [*frame(canvas, title, "times as fast as the teacher in torch", y_label), *horizontal_ticks(canvas, y)]
    best = [point for point in front(points) if not plot.sunk(point)]
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
    known = [p for p in points if p.metric is not None]
    if not known:
        return 0.0
    top = next((p for p in known if p.kind == "teacher"), known[0]).metric or 0.0
    falls = sorted(abs(top - (p.metric or 0.0)) for p in known if p.kind in {"model", "cascade", "competitor"})
    usual = falls[len(falls) // 2] if falls else 0.0
    return top - max(SHALLOWEST_SHARE * scale, 3 * usual)


def _drawn(point: Point, plot: _Plot, labels: str) -> str:
    at = "".join(f"--{mode}:{plot.x(point, mode)}px;" for mode in MODES)
    arrow = '<path class="arrow" d="M-4 11l4 5 4-5M0 8v8"/>' if plot.sunk(point) else ""
    return (
        f'<g class="point {markup_text(point.kind)}" tabindex="0" role="img" aria-label="{markup_text(point.caption)}" '
        f'style="{at}--y:{plot.height(point)}px">{_bars(point, plot)}{arrow}'
        f'<path class="mark" d="{MARKERS[point.kind].path}"/>{labels}</g>'
    )


def _bars(point: Point, plot: _Plot) -> str:
    """Return both intervals as lines through the mark, cut off at the frame."""
    canvas, y, here = plot.canvas, plot.y, plot.height(point)
    parts = []
    if point.metric is not None and not plot.sunk(point):
        ends = (point.metric_high, point.metric_low)
        top, bottom = (min(max(y.place(v), canvas.top), canvas.bottom) - here for v in ends)
        parts.append(f'<line class="bars" x1="0" x2="0" y1="{top:.1f}" y2="{bottom:.1f}"/>')
    for mode, x in plot.axes.items() if point.speedup is not None else ():
        ends = (max(point.speedup_low, 1e-9), point.speedup_high)
        left, right = (min(max(x.place(v), canvas.left), canvas.right) - plot.x(point, mode) for v in ends)
        parts.append(f'<line class="bars on-{mode}" x1="{left:.1f}" x2="{right:.1f}" y1="0" y2="0"/>')
    return "".join(parts)


def _labels(points: Sequence[Point], plot: _Plot, mode: str) -> dict[int, str]:
    """Return the names that find room: right of the mark, left, above or below; the others are told on hover."""
    canvas = plot.canvas
    marks = [(plot.x(p, mode), plot.height(p)) for p in points]
    taken = [(a - 9, b - 9, a + 9, b + 9) for a, b in marks]
    found = {}
    for index in sorted(range(len(points)), key=lambda i: (ORDER[points[i].kind], -(points[i].metric or 0))):
        px, py = marks[index]
        width = 6.6 * len(points[index].name)
        for dx, dy, anchor, left in (
            (12, 4, "start", px + 10),
            (-12, 4, "end", px - 12 - width),
            (0, -13, "middle", px - width / 2),
            (0, 21, "middle", px - width / 2),
        ):
            box = (left, py + dy - 12, left + width, py + dy + 3)
            inside = canvas.left <= box[0] and box[2] <= canvas.width - 2
            inside = inside and canvas.top - 12 <= box[1] and box[3] <= canvas.bottom
            if inside and not any(_meet(box, other) for other in taken if other is not taken[index]):
                taken.append(box)
                name = markup_text(points[index].name)
                found[index] = f'<text class="name on-{mode}" x="{dx}" y="{dy}" text-anchor="{anchor}">{name}</text>'
                break
    return found


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
