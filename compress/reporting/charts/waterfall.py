"""Waterfall chart of a speed-up: one bar for each step, on a logarithmic axis."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from compress.reporting.charts.svg import WIDE, Axis, Canvas, document, frame, vertical_ticks

STYLE = """
.chart .bar{fill:var(--c0)}.chart .bar.slower{fill:var(--c1)}
.chart .bar.total{fill:none;stroke:var(--ink);stroke-width:2}
.chart .step{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
.chart .link{stroke:var(--faint);stroke-width:1;stroke-dasharray:3 3}
"""
STEP, THICKNESS = 44, 16


@dataclass(frozen=True)
class Bar:
    """A step from one speed to the next, both as multiples of the first; ``says`` is written at its end."""

    name: str
    start: float
    end: float
    says: str
    is_total: bool = False


def waterfall_chart(
    bars: Sequence[Bar], *, title: str, canvas: Canvas = WIDE, label: str = "times as fast as before the first step"
) -> str:
    """Return the bars as a standalone SVG document: blue for what made it faster, orange for what made it slower."""
    left = 16
    canvas = replace(canvas, left=left, top=34, height=34 + STEP * len(bars) + canvas.bottom_margin)
    x = Axis.over([1.0, *(end for bar in bars for end in (bar.start, bar.end))], left, canvas.right, log=True)
    parts = [*frame(canvas, title, label, ""), *vertical_ticks(canvas, x, prefix="×")]
    for index, bar in enumerate(bars):
        parts.append(_drawn(bar, x, canvas.top + STEP * index))
        if index + 1 < len(bars) and not bar.is_total:
            at, top = x.place(bar.end), canvas.top + STEP * index + 22 + THICKNESS
            parts.append(f'<line class="link" x1="{at}" x2="{at}" y1="{top}" y2="{top + STEP - THICKNESS}"/>')
    told = "; ".join(f"{bar.name}: {bar.says}" for bar in bars)
    return document(canvas, title, parts, description=told, style=STYLE)


def _drawn(bar: Bar, x: Axis, top: int) -> str:
    ends = sorted((x.place(bar.start), x.place(bar.end)))
    style = "total" if bar.is_total else "slower" if bar.end < bar.start else "faster"
    return (
        f'<text class="step" x="{x.start}" y="{top + 16}">{escape(bar.name)}: '
        f'<tspan font-weight="600">{escape(bar.says)}</tspan></text>'
        f'<rect class="bar {style}" x="{ends[0]}" y="{top + 22}" width="{max(ends[1] - ends[0], 1.5):.1f}" '
        f'height="{THICKNESS}"/>'
    )
