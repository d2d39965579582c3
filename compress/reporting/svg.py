"""Line charts, waterfalls and heat maps as standalone SVG: light and dark screens, print, phones, screen readers."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import groupby
from typing import Concatenate, ParamSpec, Self

from compress.reporting.rendering import number, render


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

    @property
    def is_wide(self) -> bool:
        return self.width > 500


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

    @property
    def lines(self) -> list[list[tuple[float, float]]]:
        """The points of each part of the line; a part of a single point is none."""
        parts = groupby(self.points, lambda point: bisect_left(self.breaks, point[0]))
        return [line for _, points in parts if len(line := list(points)) > 1]


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
    ) -> Self:
        """Return an axis that holds all values with a margin on both sides."""
        low, high = min(values), max(values)
        if log:
            factor = math.exp(max(margin * math.log(high / low), 0.1))
            return cls(low / factor, high * factor, start, end, True)
        room = margin * (high - low) or max(abs(high) * 0.05, 0.5)
        return cls(low - room, high + room, start, end)

    def place(self, value: float) -> float:
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
                values = [value for p in powers for m in multiples if self.low <= (value := m * 10.0**p) <= self.high]
                if 3 <= len(values) <= about:
                    return values
        step = 10 ** math.floor(math.log10((self.high - self.low) / about))
        step *= next((m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= about), 10)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [value for n in numbers if (value := round(n * step, 10)) > 0 or not self.log]


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
    """Draw a line chart as a standalone SVG document; a series of one point is a single dot, of none nothing.

    Series are told apart by dashes, by the shapes of dots and by the legend above them, not by colour only.

    Args:
        log: the axes that are logarithmic, of values above 0: ``x``, ``y`` or ``xy``. Few x are their own ticks there.
        lines: join the points of a series.
        x_holds: values that the horizontal axis holds beside those of the points.
    """
    series = [one for one in series if one.points]
    across, up = ([point[axis] for one in series for point in one.points] for axis in (0, 1))
    up += [end for one in series for bar in one.bars for end in bar]
    room = LEGEND_STEP * len(series) if len(series) > 1 else 0
    canvas = replace(canvas, top=canvas.top + room, height=canvas.height + room)
    y = Axis.over(up, canvas.bottom, canvas.top, margin=0.08, log="y" in log)
    canvas = replace(canvas, left=max(canvas.left, 26 + 8 * max(len(number(tick)) for tick in y.ticks(7))))
    x = Axis.over([*across, *x_holds], canvas.left, canvas.right, margin=0.03, log="x" in log)
    ticks = sorted(set(across)) if "x" in log and len(set(across)) <= 8 else None
    says, labels = _in_words(series, x_label, y_label), {"title": title, "x_label": x_label, "y_label": y_label}
    shown = {"canvas": canvas, "series": series, "x": x, "y": y, "ticks": ticks, "lines": lines, "step": LEGEND_STEP}
    return render("lines.svg.j2", says=says, **labels, **shown)


def _in_words(series: Sequence[Series], x_label: str, y_label: str) -> str:
    def ends(line: Sequence[tuple[float, float]]) -> str:
        return " to ".join(f"{number(round(b, 2))} at {number(round(a, 2))}" for a, b in (line[0], line[-1]))

    told = [f"{one.name} goes from {', then from '.join(map(ends, one.lines or [[*one.points]]))}" for one in series]
    return f"{y_label} against {x_label}: {'; '.join(told)}."


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
    second_line = 0 if canvas.is_wide else 17  # where names and factors do not fit beside each other
    step = 44 + second_line
    canvas = replace(canvas, left=16, top=34, height=34 + step * len(bars) + canvas.bottom_margin)
    x = Axis.over([1.0, *(bar.end for bar in bars)], canvas.left, canvas.right, log=True)
    says = "; ".join(f"{bar.name}: {bar.says}" for bar in bars)
    shown = {"canvas": canvas, "bars": bars, "title": title, "label": label, "x": x, "says": says}
    return render("waterfall.svg.j2", step=step, second_line=second_line, **shown)


CELL_HEIGHT = 26


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
    cells = [(value, n, h) for n, row in zip(names, rows, strict=True) for h, value in zip(heads, row, strict=False)]
    top, name, head = max(cells)
    shown = {"canvas": canvas, "title": title, "names": names, "heads": heads, "rows": rows, "formatted": formatted}
    return render(
        "heat.svg.j2",
        says=f"{len(rows)} rows of up to {len(heads)}; the largest is {top:.4g} at {name}, {head}.",
        width=(canvas.right - left) / len(heads),
        step=CELL_HEIGHT,
        largest=max(abs(value) for value, *_ in cells) or 1.0,
        **shown,
    )
