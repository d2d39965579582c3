"""Format the cells of the results table: one function for each figure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from compress.benchmarking.results.files import Result
from compress.benchmarking.results.formatting import (
    NONE,
    count,
    megabytes,
    milliseconds,
    points,
    probability,
    shown,
    shown_metric,
    span,
    speed_or_noise,
    times,
)
from compress.benchmarking.results.formatting import shown_rate as per_second
from compress.benchmarking.results.schema import Measurement
from compress.reporting.leaders import judge


@dataclass(frozen=True)
class Cell:
    """What a cell shows, a smaller second line, and the number behind it; no number sorts last."""

    text: str
    small: str = ""
    value: float | str | None = None
    low: float | None = None
    high: float | None = None


EMPTY = Cell(NONE)


def in_one_line(cell: Cell) -> str:
    """Return what a cell shows, its second line in brackets."""
    return f"{cell.text} ({cell.small})" if cell.small else cell.text


def setting_text(line: Measurement) -> str:
    """Return what ran a row and how: its runtime, the kind of row unless it is a model, its padding and length."""
    parts = [] if line.kind == "model" else [line.kind]
    parts.append(line.runtime)
    if line.padding == "max_length":
        parts.append(f"padded to {line.max_length}")
    return ", ".join(parts)


def name(row: Result) -> Cell:
    """Return the model, and below it what ran it."""
    return Cell(row.small_batch.model, setting_text(row.small_batch), row.small_batch.model)


def metric(line: Measurement, scale: float) -> Cell:
    """Return the metric with its interval; ``scale`` is 100 for percent."""
    if line.metric is None:
        return EMPTY
    low, high = line.metric_low, line.metric_high
    if low is None or high is None:
        return Cell(shown_metric(line), "", scale * line.metric)
    interval = span(shown(low, line.metric_name, digits=1), shown(high, line.metric_name, digits=1))
    return Cell(shown_metric(line), interval, scale * line.metric, scale * low, scale * high)


def difference(row: Result) -> Cell:
    """Return points lost or won against the teacher with their paired interval."""
    line = row.small_batch
    if line.difference is None or line.is_reference:
        return EMPTY
    value, low, high = line.difference
    return Cell(points(value), span(points(low), points(high)), value, low, high)


def verdict(line: Measurement, budget_points: float) -> Cell:
    """Return what the rows say about the budget, and how many more would decide."""
    judged = None if line.is_reference else judge(line, budget_points)
    return EMPTY if judged is None else Cell(judged.outcome, judged.short, judged.outcome)


def mcnemar(row: Result) -> Cell:
    """Return the exact p of McNemar's test."""
    return EMPTY if row.small_batch.is_reference else number(row.small_batch.mcnemar_p, probability)


def calibration(row: Result) -> Cell:
    """Return the expected calibration error with its interval, in percent."""
    line = row.small_batch
    if line.calibration_error is None:
        return EMPTY
    low, high = line.calibration_error_low, line.calibration_error_high
    text, value = f"{100 * line.calibration_error:.1f}%", 100 * line.calibration_error
    if low is None or high is None:
        return Cell(text, "", value)
    return Cell(text, span(f"{100 * low:.1f}", f"{100 * high:.1f}%"), value, 100 * low, 100 * high)


def ratio(line: Measurement, key: str) -> Cell:
    """Return a speed-up with its interval."""
    if getattr(line, key) is None:
        return EMPTY
    if line.noisy:
        return Cell(speed_or_noise(line, ""))
    if line.kind == "teacher" and getattr(line, key) == 1.0:
        return Cell(times(1.0), "", 1.0)
    low, high = getattr(line, key + "_low"), getattr(line, key + "_high")
    return Cell(times(getattr(line, key)), span(times(low), times(high)), getattr(line, key), low, high)


def latency(line: Measurement, key: str) -> Cell:
    """Return a latency."""
    if getattr(line, key) is None:
        return EMPTY
    return Cell("too noisy") if line.noisy else Cell(milliseconds(getattr(line, key)), "", getattr(line, key))


def p50(row: Result) -> Cell:
    """Return the median latency, and below it the 95th percentile."""
    cell = latency(row.small_batch, "latency_p50_ms")
    return cell if cell.value is None else replace(cell, small=f"p95 {milliseconds(row.small_batch.latency_p95_ms)}")


def p95(row: Result) -> Cell:
    """Return the 95th percentile of latency with its interval."""
    line, cell = row.small_batch, latency(row.small_batch, "latency_p95_ms")
    if cell.value is None:
        return cell
    low, high = line.latency_p95_low_ms, line.latency_p95_high_ms
    interval = span(milliseconds(low).removesuffix(" ms"), milliseconds(high).removesuffix(" ms"))
    return Cell(cell.text, interval, cell.value, low, high)


def rate(line: Measurement, key: str) -> Cell:
    """Return something per second."""
    if getattr(line, key) is None:
        return EMPTY
    return Cell("too noisy") if line.noisy else Cell(per_second(getattr(line, key)), "", getattr(line, key))


def peak(row: Result) -> Cell:
    """Return the share of the device's matmul peak."""
    line = row.large_batch
    if line.matmul_peak_share is None:
        return EMPTY
    if line.noisy:
        return Cell("too noisy")
    peak = f"of {line.matmul_peak_tflops:,.1f} TFLOP/s" if line.matmul_peak_tflops else ""
    return Cell(f"{100 * line.matmul_peak_share:.1f}%", peak, 100 * line.matmul_peak_share)


def parameters(row: Result) -> Cell:
    """Return the number of weights, and how many times fewer."""
    line = row.small_batch
    if not line.parameters:
        return EMPTY
    return Cell(count(line.parameters), _smaller(line.parameters_ratio), line.parameters)


def disk(row: Result) -> Cell:
    """Return the size on disk, and how many times smaller."""
    line = row.small_batch
    return Cell(megabytes(line.size_bytes), _smaller(line.size_ratio), line.size_bytes)


def _smaller(ratio: float | None) -> str:
    """Say how many times smaller, where it is."""
    return "" if ratio is None or ratio < 1.05 else f"÷{ratio:,.{0 if ratio >= 100 else 1}f}"


def energy(row: Result) -> Cell:
    """Return the energy of a row."""
    value = row.large_batch.energy_joules_per_row
    return EMPTY if value is None else Cell(f"{value:.3g} J", "", value)


def size(value: int | None) -> Cell:
    """Return a number of bytes."""
    return EMPTY if value is None else Cell(megabytes(value), "", value)


def percent(value: float | None) -> Cell:
    """Return a percentage."""
    return EMPTY if value is None else Cell(f"{value:.1f}%", "", value)


def share(value: float | None) -> Cell:
    """Return a fraction as a percentage."""
    return EMPTY if value is None else Cell(f"{100 * value:.1f}%", "", 100 * value)


def number(value: float | None, form: Callable[[float], str]) -> Cell:
    """Return a number in a form of its own."""
    return EMPTY if value is None else Cell(form(value), "", value)
