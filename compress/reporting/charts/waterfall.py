"""Waterfall chart of a speed-up: one bar for each step, on a logarithmic axis."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compress.escaping.markup import markup_text
from compress.reporting.charts.svg import Axis, Canvas, both_sizes, document, frame, vertical_ticks

STYLE = """
.chart .bar{fill:var(--c0)}.chart .bar.slower{fill:var(--c1)}
.chart .bar.total{fill:none;stroke:var(--ink);stroke-width:2}
.chart .step{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
.chart .link{stroke:var(--faint);stroke-width:1;stroke-dasharray:3 3}
"""
STEP, THICKNESS = 44, 16


@dataclass(frozen=True)
class Bar:
    """A step to a multiple of the first speed; ``says`` is written at its end. The total starts at 1 again."""

    name: str
    end: float
    says: str
    is_total: bool = False


@both_sizes
def waterfall_chart(
    canvas: Canvas, bars: Sequence[Bar], *, title: str, label: str = "times as fast as before the first step"
) -> str:
    """Draw the bars as a standalone SVG document: blue for what made it faster, orange for what made it slower."""
    left = 16
    second_line = 0 if canvas.width > 500 else 17  # where names and factors do not fit beside each other
    step = STEP + second_line
    canvas = replace(canvas, left=left, top=34, height=34 + step * len(bars) + canvas.bottom_margin)
    x = Axis.over([1.0, *(bar.end for bar in bars)], left, canvas.right, log=True)
    parts = [*frame(canvas, title, label, ""), *vertical_ticks(canvas, x, prefix="×")]
    start = 1.0
    for index, bar in enumerate(bars):
        top = canvas.top + step * index
        bar_top = top + 22 + second_line
        place = f'x="{x.start}" dy="{second_line}" ' if second_line else ""
        ends = sorted((x.place(1.0 if bar.is_total else start), x.place(bar.end)))
        style = "total" if bar.is_total else "slower" if bar.end < start else "faster"
        parts.append(
            f'<text class="step" x="{x.start}" y="{top + 16}">{markup_text(bar.name)}: '
            f'<tspan {place}font-weight="600">{markup_text(bar.says)}</tspan></text>'
            f'<rect class="bar {style}" x="{ends[0]}" y="{bar_top}" width="{max(ends[1] - ends[0], 1.5):.1f}" '
            f'height="{THICKNESS}"/>'
        )
        if index + 1 < len(bars) and not bar.is_total:
            at = x.place(bar.end)
            ends_at = f'y1="{bar_top + THICKNESS}" y2="{bar_top + step}"'
            parts.append(f'<line class="link" x1="{at}" x2="{at}" {ends_at}/>')
        start = bar.end
    told = "; ".join(f"{bar.name}: {bar.says}" for bar in bars)
    return document(canvas, title, parts, description=told, style=STYLE)
