"""Format the cells of tables: a number, its unit and its interval."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from compress.benchmarking.results.formatting import (
    NONE,
    count,
    in_percent,
    kind_text,
    megabytes,
    points,
    probability,
    shown,
    span,
    speed_span,
    times,
)
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.results.verdict import judge_drop_of


@dataclass(frozen=True)
class Cell:
    """What a cell shows, a smaller second line, and the number behind it; no number sorts last."""

    text: str
    small: str = ""
    value: float | str | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """Return what it shows in one line, the second one in brackets."""
        return f"{self.text} ({self.small})" if self.small else self.text


EMPTY = Cell(NONE)


def setting_text(line: Measurement) -> str:
    """Return what ran a row and how: the kind of row unless it is a model, its runtime, and its padding."""
    padding = f"padded to {line.max_length}" if line.padding == "max_length" else ""
    return ", ".join(filter(None, (kind_text(line), line.runtime, padding)))


def number(
    value: float | None,
    form: Callable[[float], str],
    interval: tuple[float | None, float | None] = (None, None),
    *,
    ends: Callable[[float], str] | None = None,
    scale: float = 1,
    small: str = "",
) -> Cell:
    """Return a cell with a number and, below it, its 95% interval or else ``small``; a dash where there is no number.

    Args:
        form: writes the number.
        ends: writes the ends of the interval; by default ``form``.
        scale: 100 where the number is a fraction and the cell is in percent.
    """
    if value is None:
        return EMPTY
    low, high = interval
    if low is None or high is None:
        return Cell(form(value), small, scale * value)
    write = ends or form
    return Cell(form(value), span(write(low), write(high)), scale * value, scale * low, scale * high)


def speed(line: Measurement, key: str, form: Callable[[float], str]) -> Cell:
    """Return a speed, latency or throughput with its interval."""
    interval = line.interval(key)
    value = getattr(line, key)
    if interval is None or value is None:
        return number(value, form)
    small = speed_span(interval, lambda end: form(end).removesuffix(" ms"))
    return Cell(form(value), small, value, interval.low, interval.high)


def name(line: Measurement) -> Cell:
    """Return the model, and below it what ran it."""
    return Cell(line.model, setting_text(line), line.model)


def metric_cell(
    value: float | None,
    metric: str | None,
    interval: tuple[float | None, float | None] = (None, None),
    *,
    small: str = "",
) -> Cell:
    """Return a cell with the value of a metric, a fraction, and its interval or else ``small``."""
    ends = partial(shown, metric=metric, digits=1)
    scale = 100 if in_percent(metric) else 1
    return number(value, partial(shown, metric=metric), interval, ends=ends, scale=scale, small=small)


def metric(line: Measurement) -> Cell:
    """Return the metric of a line with its interval."""
    return metric_cell(line.metric, line.metric_name, (line.metric_low, line.metric_high))


def difference(line: Measurement) -> Cell:
    """Return the difference to the teacher in points, with its paired interval."""
    if line.difference is None or line.is_reference:
        return EMPTY
    value, low, high = line.difference
    return number(value, points, (low, high))


def verdict(line: Measurement, budget_points: float) -> Cell:
    """Return whether a row is within the budget, and how many more examples would decide."""
    judged = None if line.is_reference else judge_drop_of(line, budget_points)
    return EMPTY if judged is None else Cell(judged.outcome, judged.short, judged.outcome)


def mcnemar(line: Measurement) -> Cell:
    """Return the exact p of McNemar's test against the teacher."""
    return EMPTY if line.is_reference else number(line.mcnemar_p, probability)


def share(value: float | None) -> Cell:
    """Return a fraction as a percentage."""
    return number(value, "{:.1%}".format, scale=100)


def calibration(line: Measurement) -> Cell:
    """Return the expected calibration error with its interval, in percent."""
    interval = line.calibration_error_low, line.calibration_error_high
    cell = number(line.calibration_error, "{:.1%}".format, interval, scale=100)
    return replace(cell, small=cell.small.replace("%", "", 1))


def ratio(line: Measurement, key: str) -> Cell:
    """Return a speed-up with its interval."""
    value = getattr(line, key)
    return number(value, times) if line.kind == "teacher" and value == 1.0 else speed(line, key, times)


def peak(line: Measurement) -> Cell:
    """Return the share of the device's matmul peak that was reached."""
    known = line.matmul_peak_tflops
    small = f"of {known:,.1f} TFLOP/s" if known else ""
    return number(line.matmul_peak_share, "{:.1%}".format, scale=100, small=small)


def _smaller(ratio: float | None) -> str:
    """Say how many times smaller than the teacher something is; nothing where it is not."""
    return "" if ratio is None or ratio < 1.05 else f"÷{ratio:,.{0 if ratio >= 100 else 1}f}"


def parameters(line: Measurement) -> Cell:
    """Return the number of weights, and how many times fewer than the teacher's."""
    return number(line.parameters or None, count, small=_smaller(line.parameters_ratio))


def disk(line: Measurement) -> Cell:
    """Return the size on disk, and how many times smaller than the teacher's."""
    return number(line.size_bytes, megabytes, small=_smaller(line.size_ratio))
