"""Speed by number of threads and by sequence length: a line chart and a table each."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from compress.benchmarking.results.files import Result, grouped, largest_batch, smallest_batch
from compress.benchmarking.results.formatting import milliseconds, shown_rate, times
from compress.benchmarking.results.schema import Measurement
from compress.reporting.charts import svg
from compress.reporting.charts.svg import Picture
from compress.reporting.tables.cells import EMPTY, Cell, name, number, setting_text, speed

TITLES = {"threads": ("Threads", "Threads"), "length": ("Length of rows", "Tokens")}  # of the chart and the column
LINES = 4  # more are hard to tell apart


@dataclass(frozen=True)
class Sweep:
    """Charts and the table behind them: ``headings`` and one list of cells a row."""

    title: str
    pictures: list[Picture]
    headings: list[str]
    rows: list[list[Cell]]


def sweep(rows: Sequence[Result], key: str, best: Measurement | None) -> Sweep | None:
    """Return the charts and the table of what was measured at several values of ``threads`` or ``length``."""
    if not rows:
        return None
    smallest, largest = smallest_batch(rows), largest_batch(rows)
    lines = [
        (_line_name(own[0].small_batch), [_cells(row, key, smallest, largest) for row in own])
        for own in _swept(rows, key, best)
    ]
    if not lines:
        return None
    first = f"batch {smallest}"
    pictures = [_picture(lines, key, f"Latency by {key}, {first}", "ms", LATENCY)]
    if key == "threads":
        pictures.insert(0, _picture(lines, key, f"Rows per second by threads, batch {largest}", "rows/s", THROUGHPUT))
    # A speed-up is over the teacher at the same setting.
    speedup = f"Speed-up at the same {key}, {first}"
    title, heading = TITLES[key]
    headings = ["Model", heading, f"p50, {first}", f"p95, {first}", speedup, f"Rows/s, batch {largest}"]
    return Sweep(title, [one for one in pictures if one], headings, [cells for _, own in lines for cells in own])


def _swept(rows: Sequence[Result], key: str, best: Measurement | None) -> list[list[Result]]:
    """Return configurations that were measured at more than one value of a setting, the most telling first."""
    alike = grouped(
        rows, lambda row: (row.small_batch.model, setting_text(row.small_batch), row.small_batch.model_sha256)
    )
    value = attrgetter(f"small_batch.{key}")
    kept = [sorted(own, key=value) for own in alike.values() if len(set(map(value, own))) > 1]
    runtime = best.runtime if best else ""

    def rank(own: Sequence[Result]) -> tuple[bool, bool, bool, bool, float]:
        head = own[0].small_batch
        same = best is not None and (head.model_sha256, head.runtime) == (best.model_sha256, runtime)
        in_runtime = head.kind == "teacher" and head.runtime == runtime
        return (not head.is_reference, not same, not in_runtime, head.kind != "model", -head.speedup)

    return sorted(kept, key=rank)


# Columns of the table that are drawn.
SETTING, LATENCY, THROUGHPUT = 1, 2, 5


def _cells(row: Result, key: str, smallest: int, largest: int) -> list[Cell]:
    shown = (
        (smallest, "latency_p50_ms", milliseconds),
        (smallest, "latency_p95_ms", milliseconds),
        (smallest, "speedup", times),
        (largest, "throughput_rows_per_second", shown_rate),
    )
    return [
        name(row.small_batch),
        number(getattr(row.small_batch, key), str),
        *(speed(line, what, form) if (line := row.at(size)) else EMPTY for size, what, form in shown),
    ]


def _line_name(line: Measurement) -> str:
    return line.title + (", padded" if line.padding == "max_length" else "")


def _picture(
    lines: Sequence[tuple[str, list[list[Cell]]]], key: str, title: str, unit: str, column: int
) -> Picture | None:
    """Return a column of the table against the setting; None where none of it is known."""
    series = []
    for label, own in lines[:LINES]:
        known = [cells for cells in own if cells[column].value is not None]
        if known:
            placed = [(float(cells[SETTING].value or 0), float(cells[column].value or 0)) for cells in known]
            series.append(svg.Series(label, placed))
    if not series:
        return None
    x_label = "threads" if key == "threads" else "tokens in every row"
    return svg.line_chart(series, title=title, x_label=x_label, y_label=unit, log="xy")
