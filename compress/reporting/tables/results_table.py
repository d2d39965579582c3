"""The results table: every figure of every row, as text and as numbers to sort by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from compress.benchmarking.results import formatting
from compress.benchmarking.results.files import Result, largest_batch, smallest_batch
from compress.benchmarking.results.formatting import NONE, in_percent, megabytes, milliseconds, shown_rate
from compress.benchmarking.results.schema import Measurement
from compress.escaping.markdown import Markdown
from compress.reporting.tables import cells
from compress.reporting.tables.cells import Cell, number, ratio, share, speed

# What fits beside each other in a pull request.
ESSENTIAL = ("model", "metric", "difference", "verdict", "speedup", "latency_p50_ms", "rows_per_second", "size_bytes")


@dataclass(frozen=True)
class Column:
    """``unit`` is that of the number behind the cells; ``wide`` columns are shown on request only.

    ``make`` gets a row's line of ``batch_size``; without one any line, as for what all batch sizes have in common.
    """

    key: str
    title: str
    make: Callable[[Measurement], Cell] = field(metadata={"page_only": True})
    unit: str = ""
    wide: bool = False
    group: str = ""
    batch_size: int | None = field(default=None, metadata={"page_only": True})


@dataclass(frozen=True)
class TableRow:
    """Which kind a row is and what it is, and its cells in the order of the columns."""

    kind: str
    model: str
    runtime: str
    cells: list[Cell]


@dataclass(frozen=True)
class ResultsTable:
    """Columns and rows; every row has a cell for every column."""

    columns: list[Column]
    rows: list[TableRow]

    def groups(self, *, wide: bool) -> list[tuple[str, int]]:
        """Return the headings above the columns and how many columns each spans, the first column left out."""
        shown = (column.group for column in self.columns[1:] if wide or not column.wide)
        return [(group, len(list(same))) for group, same in groupby(shown)]


def results(rows: Sequence[Result], budget_points: float) -> ResultsTable:
    """Return the table of rows that may be compared; a column that is empty in all of them is left out."""

    def cell(column: Column, row: Result) -> Cell:
        line = row.small_batch if column.batch_size is None else row.at(column.batch_size)
        return column.make(line) if line else cells.EMPTY

    made = [(column, [cell(column, row) for row in rows]) for column in _columns(rows, budget_points)]
    made = [(column, down) for column, down in made if any(cell.text != NONE for cell in down)]
    return ResultsTable(
        [column for column, _ in made],
        [
            TableRow(
                row.small_batch.kind, row.small_batch.model, row.small_batch.runtime, [down[index] for _, down in made]
            )
            for index, row in enumerate(rows)
        ],
    )


def as_markdown(table: ResultsTable) -> Markdown:
    """Return a table's most telling columns in Markdown, safe whatever the names hold."""
    at = [index for index, column in enumerate(table.columns) if column.key in ESSENTIAL]
    rows = [[row.cells[i] for i in at] for row in table.rows]
    return Markdown(formatting.table([_title(table.columns[i]) for i in at], rows) + "\n")


def _title(column: Column) -> str:
    """Return a title that also says the batch size, which the page has in the heading above."""
    batch = column.group.partition(", ")[2]
    return f"{column.title}, {batch}" if batch else column.title


def _columns(rows: Sequence[Result], budget_points: float) -> list[Column]:
    """Return every column that there is: speed and latency at the smallest batch size, throughput at the largest."""
    metric = next((row.small_batch.metric_name for row in rows if row.small_batch.metric_name), "metric")
    smallest, largest = smallest_batch(rows), largest_batch(rows)
    wide = partial(Column, wide=True)
    at_smallest, at_largest = partial(Column, batch_size=smallest), partial(Column, batch_size=largest)
    wide_at_smallest, wide_at_largest = partial(wide, batch_size=smallest), partial(wide, batch_size=largest)
    groups: dict[str, list[Column]] = {
        "": [Column("model", "Model", cells.name)],
        "Quality": [
            Column("metric", metric.capitalize(), cells.metric, "%" if in_percent(metric) else ""),
            wide("kept", "Kept", lambda line: number(line.metric_kept_percent, "{:.1f}%".format), "%"),
            Column("difference", "Points lost or won", cells.difference),
            Column("verdict", f"Within {budget_points:g}?", lambda line: cells.verdict(line, budget_points)),
            wide("mcnemar_p", "McNemar p", cells.mcnemar),
            wide("agreement", "Agreement", lambda line: share(line.agreement), "%"),
            Column("batch_dependent_share", "Depend on the batch", lambda line: share(line.batch_dependent_share), "%"),
            wide("calibration_error", "Calibration error", cells.calibration, "%"),
        ],
        f"Speed, batch {smallest}": [
            at_smallest("speedup", "Speed-up", lambda line: ratio(line, "speedup")),
            at_smallest("speedup_with_tokenizer", "With tokenizer", lambda line: ratio(line, "speedup_with_tokenizer")),
            wide_at_smallest(
                "speedup_same_runtime", "In the same runtime", lambda line: ratio(line, "speedup_same_runtime")
            ),
        ],
        f"Latency observed, batch {smallest}": [
            at_smallest("latency_p50_ms", "p50", lambda line: speed(line, "latency_p50_ms", milliseconds), "ms"),
            wide_at_smallest("latency_p95_ms", "p95", lambda line: speed(line, "latency_p95_ms", milliseconds), "ms"),
            wide_at_smallest("latency_p99_ms", "p99", lambda line: speed(line, "latency_p99_ms", milliseconds), "ms"),
            wide_at_smallest(
                "device_p50_ms", "p50, GPU alone", lambda line: number(line.device_p50_ms, milliseconds), "ms"
            ),
        ],
        f"Throughput observed, batch {largest}": [
            wide_at_largest("speedup_large", "Speed-up", lambda line: ratio(line, "speedup")),
            at_largest("rows_per_second", "Rows/s", _rate("throughput_rows_per_second")),
            wide_at_largest(
                "rows_with_tokenizer", "Rows/s with tokenizer", _rate("throughput_with_tokenizer_rows_per_second")
            ),
            wide_at_largest("tokens", "Tokens/s", _rate("throughput_tokens_per_second")),
            wide_at_largest("peak_share", "Of matmul peak", cells.peak, "%"),
            wide_at_largest(
                "energy", "Energy a row", lambda line: number(line.energy_joules_per_row, "{:.3g} J".format), "J"
            ),
        ],
        "Size": [
            Column("parameters", "Parameters", cells.parameters),
            Column("size_bytes", "Disk", cells.disk, "bytes"),
            wide("memory_bytes", "Memory", lambda line: number(line.model_memory_bytes, megabytes), "bytes"),
            wide_at_largest(
                "gpu_bytes", "GPU memory", lambda line: number(line.peak_gpu_memory_bytes, megabytes), "bytes"
            ),
        ],
        "Other": [
            wide("load_ms", "Load", lambda line: number(line.load_ms, milliseconds), "ms"),
            wide("noise", "Noise", lambda line: share(line.noise), "%"),
        ],
    }
    return [replace(column, group=group) for group, columns in groups.items() for column in columns]


def _rate(key: str) -> Callable[[Measurement], Cell]:
    return lambda line: speed(line, key, shown_rate)
