"""Line charts, waterfalls and heat maps as standalone SVG: light and dark screens, print, phones, screen readers."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Concatenate, ParamSpec

from compress.escaping.markup import markup_text

# Okabe and Ito's colours, told apart by colour-blind readers; the dark set is lighter for the same contrast.
STYLE = """
.chart{--ink:#1f2933;--faint:#66717d;--grid:#e3e7eb;--paper:#fff;--c0:#0067a5;--c1:#b35900;--c2:#007a5a;--c3:#a23b7a;--c4:#6b5f00;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:13px}
@media (prefers-color-scheme:dark){.chart{--ink:#e6eaee;--faint:#9aa5b1;--grid:#343d47;--paper:#171c22;--c0:#5cb3ec;
--c1:#f0a03c;--c2:#3fc79a;--c3:#e08abf;--c4:#d8cc4a}}
@media print{.chart{--ink:#000;--faint:#444;--grid:#ddd;--paper:#fff;--c0:#0067a5;--c1:#b35900;--c2:#007a5a;
--c3:#a23b7a;--c4:#6b5f00}}
.chart text{fill:var(--ink)}.chart .faint{fill:var(--faint)}.chart .title{font-weight:600;font-size:15px}
.chart .grid{stroke:var(--grid);stroke-width:1}.chart .axis{stroke:var(--faint);stroke-width:1}
.chart .line{fill:none;stroke-width:2.5;stroke-linejoin:round}.chart .paper{fill:var(--paper)}
.chart .s0{stroke:var(--c0);--own:var(--c0)}.chart .s1{stroke:var(--c1);--own:var(--c1)}
.chart .s2{stroke:var(--c2);--own:var(--c2)}.chart .s3{stroke:var(--c3);--own:var(--c3)}
.chart .s4{stroke:var(--c4);--own:var(--c4)}
.chart .line.d1{stroke-dasharray:9 4}.chart .line.d2{stroke-dasharray:2 4}.chart .line.d3{stroke-dasharray:10 3 2 3}
.chart .line.d4{stroke-dasharray:14 3 2 3 2 3}
.chart .bar{stroke-width:1.5;opacity:.55}
.chart .dot{fill:var(--own);stroke:var(--paper);stroke-width:1.5}.chart .key{fill:var(--own);stroke:none}
"""
# Outlines of dots: circle, square, triangle, diamond and triangle on its tip.
DOTS = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "M-4-4h8v8h-8z",
    "M0-5.5 5.5 4.5h-11z",
    "M0-6 6 0 0 6-6 0z",
    "M0 5.5 5.5-4.5h-11z",
)


@dataclass(frozen=True)
class Canvas:
    """A drawing's size, and its plot area inside the margins, in pixels at which its text is easily read."""

    width: int
    height: int
    left: int = 58
    right_margin: int = 26
    top: int = 44
    bottom_margin: int = 52

    @property
    def right(self) -> int:
        return self.width - self.right_margin

    @property
    def bottom(self) -> int:
        return self.height - self.bottom_margin


WIDE, NARROW = Canvas(760, 410), Canvas(380, 330)
LEGEND_STEP = 20

P = ParamSpec("P")


@dataclass(frozen=True)
class Picture:
    """The same chart for a wide and for a narrow screen."""

    wide: str
    narrow: str


def both_sizes(draw: Callable[Concatenate[Canvas, P], str]) -> Callable[P, Picture]:
    """Make a function that draws on a canvas one that returns the picture for both screens."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Picture:
        return Picture(draw(WIDE, *args, **kwargs), draw(NARROW, *args, **kwargs))

    return drawn


@dataclass(frozen=True)
class Series:
    """A named line through points ``(x, y)``, each with its ``(low, high)`` where ``bars`` are given.

    ``dots`` are the numbers of the points that are drawn as such (None: all). The line is interrupted after each x of
    ``breaks``.
    """

    name: str
    points: Sequence[tuple[float, float]]
    bars: Sequence[tuple[float, float]] = ()
    dots: Sequence[int] | None = None
    breaks: Sequence[float] = ()


@dataclass(frozen=True)
class Axis:
    """Maps values onto pixels, with round ticks; ``log`` needs values above 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls, values: Sequence[float], start: float, end: float, *, log: bool = False, margin: float = 0.06
    ) -> Axis:
        """Return an axis that holds all values with a margin on both sides."""
        low, high = min(values), max(values)
        if log:
            room = max(margin * math.log(high / low), 0.1)
            return cls(low / math.exp(room), high * math.exp(room), start, end, True)
        room = margin * (high - low) or max(abs(high) * 0.05, 0.5)
        return cls(low - room, high + room, start, end)

    def place(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, about: int = 6) -> list[float]:
        """Return round values on the axis: steps of 1, 2 or 5; on a log axis 1, 2, 5, 10, ..."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for multiples in ((1, 2, 5), (1, 3), (1,)):
                found = [m * 10.0**power for power in powers for m in multiples]
                found = [value for value in found if self.low <= value <= self.high]
                if 3 <= len(found) <= about:
                    return found
        step = 10 ** math.floor(math.log10((self.high - self.low) / about))
        step *= next((m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= about), 10)
        first = math.ceil(self.low / step)
        values = [round(index * step, 10) for index in range(first, math.floor(self.high / step) + 1)]
        return [value for value in values if value > 0] if self.log else values


def number(value: float) -> str:
    """Return a tick's label without needless digits."""
    return f"{value:,.10g}" if abs(value) >= 1000 else f"{value:.10g}"


@both_sizes
def line_chart(
    canvas: Canvas,
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: str = "",
    lines: bool = True,
    x_holds: Sequence[float] = (),
) -> str:
    """Draw a line chart as a standalone SVG document; a series of one point is a single dot.

    Series are told apart by dashes, by the shapes of dots and by the legend above them, not by colour only.

    Args:
        log: the axes that are logarithmic, of values above 0: ``x``, ``y`` or ``xy``. Few x are their own ticks there.
        lines: join the points of a series.
        x_holds: values that the horizontal axis holds beside those of the points.
    """
    points = [point for one in series for point in one.points]
    legend = _legend(canvas, series) if len(series) > 1 else []
    room = LEGEND_STEP * len(legend)
    canvas = replace(canvas, top=canvas.top + room, height=canvas.height + room)
    ends = [end for one in series for bar in one.bars for end in bar]
    y = Axis.over([*(p[1] for p in points), *ends], canvas.bottom, canvas.top, margin=0.08, log="y" in log)
    widest = max(len(number(tick)) for tick in y.ticks(7))
    canvas = replace(canvas, left=max(canvas.left, 26 + 8 * widest))
    x = Axis.over([*(p[0] for p in points), *x_holds], canvas.left, canvas.right, margin=0.03, log="x" in log)
    parts = [*frame(canvas, title, x_label, y_label), *legend]
    measured = sorted({p[0] for p in points})
    at = measured if "x" in log and len(measured) <= 8 else None
    parts += [*horizontal_ticks(canvas, y), *vertical_ticks(canvas, x, at=at)]
    for index, one in enumerate(series):
        style, dash, dot = _look(index)
        placed = [(x.place(a), y.place(b)) for a, b in one.points]
        for (a, _), (low, high) in zip(placed, one.bars, strict=bool(one.bars)):
            parts.append(f'<line class="bar {style}" x1="{a}" x2="{a}" y1="{y.place(low)}" y2="{y.place(high)}"/>')
        for end in one.breaks:
            across = f'x1="{x.place(end)}" x2="{x.place(end)}" y1="{canvas.top}" y2="{canvas.bottom}"'
            parts.append(f'<line class="axis" stroke-dasharray="3 3" {across}/>')
        for own in _parted(one) if lines else ():
            line = " ".join(f"{x.place(a)},{y.place(b)}" for a, b in own)
            parts.append(f'<polyline class="line {style} {dash}" points="{line}"/>')
        for position, ((a, b), (value, result)) in enumerate(zip(placed, one.points, strict=True)):
            if one.dots is not None and position not in one.dots:
                continue
            says = markup_text(f"{one.name}: {number(round(value, 2))} → {number(round(result, 2))}")
            at_point = f'd="{dot}" transform="translate({a} {b})"'
            parts.append(f'<path class="dot {style}" {at_point}><title>{says}</title></path>')
    return document(canvas, title, parts, description=_in_words(series, x_label, y_label))


def document(
    canvas: Canvas, title: str, parts: Sequence[str], *, description: str = "", style: str = "", role: str = "img"
) -> str:
    """Wrap drawn parts into an SVG document with its own colours."""
    label = markup_text(f"{title}. {description}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {canvas.width} {canvas.height}" '
        f'role="{role}" aria-label="{label}"><style>{STYLE}{style}</style>'
        f'<rect class="paper" width="{canvas.width}" height="{canvas.height}"/>{"".join(parts)}</svg>\n'
    )


def frame(canvas: Canvas, title: str, x_label: str, y_label: str) -> list[str]:
    """Return the title and the names of both axes."""
    across, down = (canvas.left + canvas.right) / 2, (canvas.top + canvas.bottom) / 2
    return [
        f'<text class="title" x="{canvas.left if canvas.width > 500 else 8}" y="22">{markup_text(title)}</text>',
        f'<text class="faint" x="{across}" y="{canvas.height - 10}" text-anchor="middle">{markup_text(x_label)}</text>',
        f'<text class="faint" transform="translate(14 {down}) rotate(-90)" text-anchor="middle">'
        f"{markup_text(y_label)}</text>",
    ]


def horizontal_ticks(canvas: Canvas, y: Axis) -> list[str]:
    """Return the grid lines and labels of the vertical axis."""
    return [
        f'<line class="grid" x1="{canvas.left}" x2="{canvas.right}" y1="{y.place(v)}" y2="{y.place(v)}"/>'
        f'<text class="faint" x="{canvas.left - 8}" y="{y.place(v) + 4}" text-anchor="end">{number(v)}</text>'
        for v in y.ticks(7)
    ]


def vertical_ticks(
    canvas: Canvas, x: Axis, *, prefix: str = "", group: str = "", at: Sequence[float] | None = None
) -> list[str]:
    """Return the labels and marks of the horizontal axis in a group of their own, at round values or those given."""
    marks = [
        f'<line class="grid" x1="{x.place(v)}" x2="{x.place(v)}" y1="{canvas.top}" y2="{canvas.bottom}"/>'
        f'<text class="faint" x="{x.place(v)}" y="{canvas.bottom + 18}" text-anchor="middle">'
        f"{prefix}{number(v)}</text>"
        for v in (at or x.ticks(8 if canvas.width > 500 else 5))
    ]
    ends = f'x1="{canvas.left}" x2="{canvas.right}" y1="{canvas.bottom}" y2="{canvas.bottom}"'
    return [f'<g class="{group}">', *marks, f'<line class="axis" {ends}/>', "</g>"]


def _look(index: int) -> tuple[str, str, str]:
    """Return the classes of colour and dash, and the outline of dots, of a series: no two of 25 have all the same."""
    form = (index + index // len(DOTS)) % len(DOTS)
    return f"s{index % len(DOTS)}", f"d{form}", DOTS[form]


def _parted(series: Series) -> list[list[tuple[float, float]]]:
    """Return the points of each part of a line; a part of a single point is none."""
    parts = itertools.groupby(series.points, lambda point: bisect.bisect_left(series.breaks, point[0]))
    return [part for _, own in parts if len(part := list(own)) > 1]


def _legend(canvas: Canvas, series: Sequence[Series]) -> list[str]:
    """Return one line of the legend for every series, between the title and the plot."""
    left, lines = canvas.left if canvas.width > 500 else 12, []
    for index, one in enumerate(series):
        y, (style, dash, outline) = 44 + LEGEND_STEP * index, _look(index)
        at_line = f'd="{outline}" transform="translate({left + 17} {y - 4})"'
        dot = f'<path class="dot {style}" {at_line}/>' if one.dots != () else ""
        lines.append(
            f'<g><line class="line {style} {dash}" x1="{left}" x2="{left + 34}" y1="{y - 4}" y2="{y - 4}"/>{dot}'
            f'<text x="{left + 42}" y="{y}">{markup_text(one.name)}</text></g>'
        )
    return lines


def _in_words(series: Sequence[Series], x_label: str, y_label: str) -> str:
    told = []
    for one in series:
        parts = [[part[0], part[-1]] for part in _parted(one) or [[*one.points]] if part]
        ends = [" to ".join(f"{number(round(b, 2))} at {number(round(a, 2))}" for a, b in part) for part in parts]
        told += [f"{one.name} goes from {', then from '.join(ends)}"] if ends else []
    return f"{y_label} against {x_label}: {'; '.join(told)}."


WATERFALL_STYLE = """
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
    """Draw a bar for each step, on a logarithmic axis: blue for what made it faster, orange for slower."""
    second_line = 0 if canvas.width > 500 else 17  # where names and factors do not fit beside each other
    left, step = 16, STEP + second_line
    canvas = replace(canvas, left=left, top=34, height=34 + step * len(bars) + canvas.bottom_margin)
    x = Axis.over([1.0, *(bar.end for bar in bars)], left, canvas.right, log=True)
    parts = [*frame(canvas, title, label, ""), *vertical_ticks(canvas, x, prefix="×")]
    place = f'x="{x.start}" dy="{second_line}" ' if second_line else ""
    start = 1.0
    for index, bar in enumerate(bars):
        top = canvas.top + step * index
        bar_top = top + 22 + second_line
        low, high = sorted((x.place(1.0 if bar.is_total else start), x.place(bar.end)))
        style = "total" if bar.is_total else "slower" if bar.end < start else "faster"
        parts.append(
            f'<text class="step" x="{x.start}" y="{top + 16}">{markup_text(bar.name)}: '
            f'<tspan {place}font-weight="600">{markup_text(bar.says)}</tspan></text>'
            f'<rect class="bar {style}" x="{low}" y="{bar_top}" width="{max(high - low, 1.5):.1f}" '
            f'height="{THICKNESS}"/>'
        )
        if index + 1 < len(bars) and not bar.is_total:
            at, ends_at = x.place(bar.end), f'y1="{bar_top + THICKNESS}" y2="{bar_top + step}"'
            parts.append(f'<line class="link" x1="{at}" x2="{at}" {ends_at}/>')
        start = bar.end
    says = "; ".join(f"{bar.name}: {bar.says}" for bar in bars)
    return document(canvas, title, parts, description=says, style=WATERFALL_STYLE)


CELL_HEIGHT = 26
HEAT_STYLE = (
    ".chart .cell{fill:var(--c0)}.chart .below{fill:var(--c1)}.chart .over{fill:var(--paper)}"
    ".chart .small{font-size:11px}"
)


@both_sizes
def heat_map(
    canvas: Canvas,
    rows: Sequence[Sequence[float]],
    *,
    title: str,
    rows_named: Sequence[str] = (),
    columns_named: Sequence[str] = (),
    formatted: Callable[[float], str] | None = None,
) -> str:
    """Draw a table of numbers, the first row on top; rows may differ in length.

    The shade is a number's share of the largest magnitude; numbers below zero have another colour.

    Args:
        rows_named: by default ``layer 1`` and so on.
        columns_named: by default numbers from 1.
        formatted: makes of a number what is written into its cell; without it none is.
    """
    names = rows_named or [f"layer {index + 1}" for index in range(len(rows))]
    heads = columns_named or [str(index + 1) for index in range(max(map(len, rows)))]
    left = max(canvas.left, 16 + 7 * max(map(len, names)))
    canvas = replace(canvas, left=left, height=canvas.top + 34 + CELL_HEIGHT * len(rows))
    width = (canvas.right - left) / len(heads)
    cells = [
        (value, name, head, row, column)
        for row, (name, values) in enumerate(zip(names, rows, strict=True))
        for column, (head, value) in enumerate(zip(heads, values, strict=False))
    ]
    largest = max(abs(value) for value, *_ in cells) or 1.0
    parts = [f'<text class="title" x="{left if canvas.width > 500 else 8}" y="22">{markup_text(title)}</text>']
    for column, head in enumerate(heads):
        short = head if len(head) * 7 < width else head[: max(1, int(width // 8))]
        place = f'x="{left + width * (column + 0.5):.1f}" y="{canvas.top + 8}" text-anchor="middle"'
        parts.append(f'<text class="faint small" {place}>{markup_text(short)}</text>')
    for row, name in enumerate(names):
        place = f'x="{left - 8}" y="{canvas.top + 33 + CELL_HEIGHT * row}" text-anchor="end"'
        parts.append(f'<text class="faint" {place}>{markup_text(name)}</text>')
    for value, name, head, row, column in cells:
        x, y, share = left + width * column, canvas.top + 16 + CELL_HEIGHT * row, abs(value) / largest
        parts.append(
            f'<rect class="{"below" if value < 0 else "cell"}" x="{x:.1f}" y="{y}" width="{width - 2:.1f}" '
            f'height="{CELL_HEIGHT - 2}" fill-opacity="{share:.3f}">'
            f"<title>{markup_text(name)}, {markup_text(head)}: {value:.4g}</title></rect>"
        )
        if formatted and width > 30:
            parts.append(
                f'<text class="small{" over" if share > 0.6 else ""}" x="{x + width / 2 - 1:.1f}" y="{y + 16}" '
                f'text-anchor="middle">{formatted(value)}</text>'
            )
    top, name, head, *_ = max(cells)
    says = f"{len(rows)} rows of up to {len(heads)}; the largest is {top:.4g} at {name}, {head}."
    return document(canvas, title, parts, description=says, style=HEAT_STYLE)
