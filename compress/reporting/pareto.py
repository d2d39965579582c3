"""The picture of a report: metric against speed-up, with the Pareto front.

It is drawn for a logarithmic and a linear axis at once; the page's style sheet shows one of them, so that the page is
complete without a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from compress.reporting.plot import WIDE, Axis, Canvas, document, frame, horizontal_ticks, vertical_ticks

STYLE = """
.chart .point{transition:transform .35s}
.chart .point:focus{outline:none}.chart .point .bars{opacity:.22;stroke:var(--own);stroke-width:1.5}
.chart .point:hover .bars,.chart .point:focus .bars{opacity:1}
.chart .point:focus-visible .mark{stroke:var(--ink);stroke-width:3}
.chart .point .mark{fill:var(--own);stroke:var(--paper);stroke-width:1.5}
.chart .point.hollow .mark{fill:var(--paper);stroke:var(--own);stroke-width:2.2}
.chart .front{fill:none;stroke:var(--c0);stroke-width:1.5;stroke-dasharray:5 4;opacity:.75}
.chart .one{stroke:var(--faint);stroke-width:1;stroke-dasharray:2 3}
.chart .point.teacher{--own:var(--c1)}.chart .point.model{--own:var(--c0)}.chart .point.control{--own:var(--c3)}
.chart .point .name{font-size:12px;paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
.chart .point{transform:translate(var(--log),var(--y))}
.chart .on-linear{display:none}
"""


@dataclass(frozen=True)
class Point:
    """A mark: ``kind`` is teacher, model or control; ``metric`` with its interval is on the scale of the axis."""

    name: str
    kind: str
    speedup: float
    speedup_low: float
    speedup_high: float
    metric: float
    metric_low: float
    metric_high: float
    caption: str


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both speed and metric, by rising speed; controls do not count."""
    found: list[Point] = []
    for point in sorted((p for p in points if p.kind != "control"), key=lambda p: (-p.speedup, -p.metric)):
        if not found or point.metric > found[-1].metric:
            found.append(point)
    return found[::-1]


def pareto_chart(points: Sequence[Point], *, title: str, y_label: str, canvas: Canvas = WIDE) -> str:
    """Return metric against speed-up as a standalone SVG; every mark can take the focus and says what it is."""
    speeds = [1.0, *(p.speedup for p in points)]
    axes = {
        "log": Axis.over(speeds, canvas.left, canvas.right, log=True),
        "linear": Axis.over(speeds, canvas.left, canvas.right),
    }
    y = Axis.over([p.metric for p in points], canvas.bottom, canvas.top, margin=0.15)
    x_label = "times as fast as the teacher in torch"
    parts = [*frame(canvas, title, x_label, y_label), *horizontal_ticks(canvas, y)]
    for mode, x in axes.items():
        parts += vertical_ticks(canvas, x, prefix="×", group=f"on-{mode}")
        line = " ".join(f"{x.place(p.speedup)},{y.place(p.metric)}" for p in front(points))
        parts.append(f'<polyline class="front on-{mode}" points="{line}"/>')
        one = x.place(1.0)
        parts.append(f'<line class="one on-{mode}" x1="{one}" x2="{one}" y1="{canvas.top}" y2="{canvas.bottom}"/>')
    named = {mode: _labels(points, canvas, x, y) for mode, x in axes.items()}
    for index, point in enumerate(points):
        at = {mode: x.place(point.speedup) for mode, x in axes.items()}
        hollow = " hollow" if point.kind == "control" else ""
        parts.append(
            f'<g class="point {escape(point.kind)}{hollow}" tabindex="0" role="img" '
            f'aria-label="{escape(point.caption)}" '
            f'style="--log:{at["log"]}px;--linear:{at["linear"]}px;--y:{y.place(point.metric)}px">'
            + _bars(point, canvas, axes, y)
            + _mark(point.kind)
            + "".join(named[mode].get(index, "") for mode in axes)
            + "</g>"
        )
    return document(canvas, title, parts, description=f"{len(points)} models", style=STYLE, role="group")


def _mark(kind: str) -> str:
    if kind == "teacher":
        return '<path class="mark" d="M0-8 8 0 0 8-8 0z"/>'
    return '<circle class="mark" r="6"/>'


def _bars(point: Point, canvas: Canvas, axes: dict[str, Axis], y: Axis) -> str:
    """Return both intervals as lines through the mark, cut off at the frame."""
    here = y.place(point.metric)
    ends = (point.metric_high, point.metric_low)
    top, bottom = (min(max(y.place(v), canvas.top), canvas.bottom) - here for v in ends)
    parts = [f'<line class="bars" x1="0" x2="0" y1="{top:.1f}" y2="{bottom:.1f}"/>']
    for mode, x in axes.items():
        ends = (max(point.speedup_low, 1e-9), point.speedup_high)
        left, right = (min(max(x.place(v), canvas.left), canvas.right) - x.place(point.speedup) for v in ends)
        parts.append(f'<line class="bars on-{mode}" x1="{left:.1f}" x2="{right:.1f}" y1="0" y2="0"/>')
    return "".join(parts)


def _labels(points: Sequence[Point], canvas: Canvas, x: Axis, y: Axis) -> dict[int, str]:
    """Return the names that find room: right of the mark, left, above or below; the others are told on hover."""
    mode = "log" if x.log else "linear"
    marks = [(x.place(p.speedup), y.place(p.metric)) for p in points]
    taken = [(a - 9, b - 9, a + 9, b + 9) for a, b in marks]
    found = {}
    order = {"teacher": 0, "model": 1, "control": 2}
    for index in sorted(range(len(points)), key=lambda i: (order.get(points[i].kind, 1), -points[i].metric)):
        px, py = marks[index]
        width = 6.6 * len(points[index].name)
        for dx, dy, anchor, left in (
            (12, 4, "start", px + 10), (-12, 4, "end", px - 12 - width),
            (0, -13, "middle", px - width / 2), (0, 21, "middle", px - width / 2),
        ):  # fmt: skip
            box = (left, py + dy - 12, left + width, py + dy + 3)
            inside = canvas.left <= box[0] and box[2] <= canvas.width - 2
            inside = inside and canvas.top - 12 <= box[1] and box[3] <= canvas.bottom
            if inside and not any(_meet(box, other) for other in taken if other is not taken[index]):
                taken.append(box)
                name = escape(points[index].name)
                found[index] = f'<text class="name on-{mode}" x="{dx}" y="{dy}" text-anchor="{anchor}">{name}</text>'
                break
    return found


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
