"""Speed by number of threads and by sequence length: a line chart and a table each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from compress.benchmarking.results.files import Result
from compress.benchmarking.results.formatting import milliseconds, shown_rate, speed_or_noise, times
from compress.benchmarking.results.schema import Measurement
from compress.reporting.charts import svg
from compress.reporting.charts.svg import Picture
from compress.reporting.tables.cells import Cell, setting_text

LINES = 4  # more cannot be told apart by their dashes


@dataclass(frozen=True)
class Sweep:
    """Charts and the table behind them: ``headings`` and one list of cells a row."""

    title: str
    pictures: list[Picture]
    headings: list[str]
    rows: list[list[Cell]]


def thread_sweep(rows: Sequence[Result], best: Result | None) -> Sweep | None:
    """Return rows per second and latency against threads, where something was measured with more than one count."""
    names = _swept(rows, "threads", best)
    if not names:
        return None
    one, many = rows[0].small_batch.batch_size, rows[0].large_batch.batch_size
    pictures = [
        _picture(names, "threads", f"Rows per second by threads, batch {many}", "rows/s", _rows_per_second),
        _picture(names, "threads", f"Latency by threads, batch {one}", "ms", _p50),
    ]
    headings = ["Model", "Threads", *_headings(rows, "threads")]
    return Sweep("Threads", [picture for picture in pictures if picture], headings, _table(names, "threads"))


def length_sweep(rows: Sequence[Result], best: Result | None) -> Sweep | None:
    """Return latency against the length of rows, where fixed lengths were measured."""
    rows = [row for row in rows if row.small_batch.length is not None]
    names = _swept(rows, "length", best)
    if not names:
        return None
    title = f"Latency by length, batch {rows[0].small_batch.batch_size}"
    picture = _picture(names, "length", title, "ms", _p50)
    headings = ["Model", "Tokens", *_headings(rows, "length")]
    return Sweep("Length of rows", [picture] if picture else [], headings, _table(names, "length"))


Name = tuple[str, str, str]


def _swept(rows: Sequence[Result], key: str, best: Result | None) -> dict[Name, list[Result]]:
    """Return the configurations that were measured at more than one value of a setting; the most telling first."""
    found: dict[Name, list[Result]] = {}
    for row in rows:
        found.setdefault(
            (row.small_batch.model, setting_text(row.small_batch), row.small_batch.model_sha256), []
        ).append(row)
    value = attrgetter(f"small_batch.{key}")
    kept = {name: sorted(own, key=value) for name, own in found.items() if len(set(map(value, own))) > 1}
    runtime = best.small_batch.runtime if best else ""

    def rank(name: Name) -> tuple[bool, bool, bool, bool, float]:
        head = kept[name][0].small_batch
        same = best is not None and (head.model_sha256, head.runtime) == (best.small_batch.model_sha256, runtime)
        in_runtime = head.kind == "teacher" and head.runtime == runtime
        return (not head.is_reference, not same, not in_runtime, head.kind != "model", -head.speedup)

    return {name: kept[name] for name in sorted(kept, key=rank)}


def _picture(
    names: dict[Name, list[Result]], key: str, title: str, unit: str, value: Callable[[Result], float | None]
) -> Picture | None:
    series = []
    for (model, _, _), rows in list(names.items())[:LINES]:
        placed = [(float(getattr(row.small_batch, key)), found) for row in rows if (found := value(row)) is not None]
        if placed:
            padded = ", padded" if rows[0].small_batch.padding == "max_length" else ""
            series.append(svg.Series(f"{model} in {rows[0].small_batch.runtime}{padded}", placed))
    if not series:
        return None
    x_label = "threads" if key == "threads" else "tokens in every row"
    return Picture.both(
        lambda canvas: svg.line_chart(series, title=title, x_label=x_label, y_label=unit, canvas=canvas, log=True)
    )


def _rows_per_second(row: Result) -> float | None:
    return None if row.large_batch.noisy else float(row.large_batch.throughput_rows_per_second)


def _p50(row: Result) -> float | None:
    return None if row.small_batch.noisy else float(row.small_batch.latency_p50_ms)


def _headings(rows: Sequence[Result], same: str) -> list[str]:
    """Return the headings of what was measured; a speed-up is over the teacher at the same setting."""
    one, many = rows[0].small_batch.batch_size, rows[0].large_batch.batch_size
    latency = [f"p50, batch {one}", f"p95, batch {one}"]
    return [*latency, f"Speed-up at the same {same}, batch {one}", f"Rows/s, batch {many}"]


def _table(names: dict[Name, list[Result]], key: str) -> list[list[Cell]]:
    return [
        [
            Cell(model, where, model),
            Cell(str(getattr(row.small_batch, key)), "", getattr(row.small_batch, key)),
            _cell(row.small_batch, "latency_p50_ms", milliseconds),
            _cell(row.small_batch, "latency_p95_ms", milliseconds),
            _cell(row.small_batch, "speedup", times),
            _cell(row.large_batch, "throughput_rows_per_second", shown_rate),
        ]
        for (model, where, _), rows in names.items()
        for row in rows
    ]


def _cell(line: Measurement, key: str, form: Callable[[float], str]) -> Cell:
    return Cell(speed_or_noise(line, form(getattr(line, key))), "", None if line.noisy else getattr(line, key))
