"""Format the numbers of reports, tables and verdicts."""

import math
from collections.abc import Callable, Sequence

from compress.benchmarking.results.schema import Measurement
from compress.escaping import Markdown, markdown_text
from compress.inference.speedup_intervals import Interval

NONE = "–"
WIDE = 1.25
WIDE_NOTE = (
    f"Intervals marked wide span more than a factor of {WIDE:g}: a benchmark with a longer --time-limit, or a machine "
    "with less other work, narrows them."
)


def shown(value: float | None, metric: str | None, *, digits: int = 2) -> str:
    """Return the value of a metric: accuracy and F1 in percent, correlations as fractions; a dash for none."""
    if value is None:
        return NONE
    return f"{100 * value:.{digits}f}%" if in_percent(metric) else f"{value:.{digits + 2}f}"


def shown_metric(line: Measurement) -> str:
    return shown(line.metric, line.metric_name)


def in_percent(metric: str | None) -> bool:
    return (metric or "").rpartition("-")[2] in {"accuracy", "agreement", "f1", "precision", "recall"}


def metric_title(name: str | None) -> str:
    """Return a metric's name for a heading, with its unit."""
    return f"{name} (%)" if in_percent(name) else name or "metric"


def points(value: float) -> str:
    """Return a difference in points with its sign and a true minus: ``−0.57``."""
    return f"{value:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")


def in_points(budget: float) -> str:
    """Return a budget as it was given: ``1 point``, ``0.5 points``."""
    return f"{budget:g} point{'' if budget == 1 else 's'}"


def precision(line: Measurement) -> str:
    """Return what quantization made of a model: ``int8``, ``packed``, smaller and no faster, or ``float32`` again."""
    return line.quantizer if line.quantizer in {"packed", "float32"} else "int8"


def kind_text(line: Measurement) -> str:
    """Return what a row is, unless it is a model: its kind, or that it kept float32 where int8 was refused."""
    kept = "float32 kept" if line.quantizer == "float32" else ""
    return ", ".join(filter(None, ("" if line.kind == "model" else line.kind, kept)))


def megabytes(size_bytes: float) -> str:
    """Return a size with two significant digits at least: ``1.2 kB``, ``4.4 MB``, ``91 MB``."""
    if size_bytes < 1e4:
        return f"{size_bytes / 1e3:.1f} kB"
    size = size_bytes / 1e6
    return f"{size:.2f} MB" if size < 1 else f"{size:.1f} MB" if size < 20 else f"{size:,.0f} MB"


def times(value: float) -> str:
    """Return a ratio with three significant digits, or two just below 1: ``×0.053``, ``×0.97``, ``×46.2``."""
    if value < 0.3:
        return f"×{value:.3f}"
    return f"×{value:.2f}" if value < 9.995 else f"×{value:.1f}" if value < 99.95 else f"×{value:,.0f}"


def milliseconds(value: float) -> str:
    """Return a duration with three significant digits: ``0.185 ms``, ``9.02 ms``, ``237 ms``; two where it is tiny."""
    if 0 < value < 0.01:
        return f"{value:.{1 - math.floor(math.log10(value))}f} ms"
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} ms"


def count(value: float) -> str:
    """Return a large number in short: ``22.7 M``, ``1.1 M``, ``860 k``."""
    return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value / 1e3:.0f} k" if value >= 1e4 else f"{value:,.0f}"


def shown_rate(value: float) -> str:
    """Return a number of things per second or hour with three significant digits at least: ``4.21``, ``7,572``."""
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def probability(value: float) -> str:
    """Return a p-value with two significant digits: ``0.41``, ``0.032``, ``< 0.001``."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def money(value: float, currency: str = "") -> str:
    """Return an amount with two significant digits at least, also below a cent: ``0.34``, ``0.00012``, ``1,250``."""
    digits = 0 if value >= 100 else 2 if value >= 1 or value <= 0 else 1 - math.floor(math.log10(value))
    return f"{value:,.{digits}f} {currency}".rstrip()


def exact(value: float | str) -> str:
    """Return a number to calculate with: ten significant digits, without the noise of binary fractions behind them."""
    return value if isinstance(value, str) else f"{value:.10g}"


def span(low: str, high: str) -> str:
    """Return an interval: ``−1.16 to +2.07``."""
    return f"{low} to {high}"


def plural(number: int, noun: str) -> str:
    """Return a count of things: ``1 thread``, ``1,200 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def speed_span(interval: Interval, form: Callable[[float], str]) -> str:
    """Return the 95% interval of a speed, and mark it where it spans more than a factor of :data:`WIDE`."""
    return span(form(interval.low), form(interval.high)) + (", wide" if is_wide(interval) else "")


def with_span(figure: Interval | None, form: Callable[[float], str]) -> str:
    """Return a speed with its interval, ``×4.06 (×3.93 to ×4.21)``; a dash for none."""
    return NONE if figure is None else f"{form(figure.value)} ({speed_span(figure, form)})"


def is_wide(interval: Interval) -> bool:
    """Tell whether an interval is so wide that the first digits of its speed are not known."""
    return interval.high > WIDE * interval.low


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> Markdown:
    """Return a table: the first columns, ``left`` of them, to the left, numbers to the right."""
    first, *others = ([markdown_text(cell) for cell in row] for row in (headings, *rows))
    lines = [first, [*["---"] * left, *["---:"] * (len(headings) - left)], *others]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))
