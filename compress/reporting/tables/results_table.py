"""The results table: every figure of every row, as text and as numbers to sort by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from compress.benchmarking.results import formatting
from compress.benchmarking.results.files import Result
from compress.benchmarking.results.formatting import NONE, in_percent, megabytes, milliseconds, shown_rate
from compress.escaping.markdown import Markdown
from compress.reporting.tables import cells
from compress.reporting.tables.cells import Cell, number, ratio, share, speed

# What fits beside each other in a pull request.
ESSENTIAL = ("model", "metric", "difference", "verdict", "speedup", "latency_p50_ms", "rows_per_second", "size_bytes")


@dataclass(frozen=True)
class Column:
    """``unit`` is that of the number behind the cells; ``wide`` columns are shown on request only."""

    key: str
    title: str
    make: Callable[[Result], Cell] = field(metadata={"page_only": True})
    unit: str = ""
    wide: bool = False
    group: str = ""


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
    made = [(column, [column.make(row) for row in rows]) for column in _columns(rows, budget_points)]
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
    rows = [[cells.in_one_line(row.cells[i]) for i in at] for row in table.rows]
    return Markdown(formatting.table([_title(table.columns[i]) for i in at], rows) + "\n")


def _title(column: Column) -> str:
    """Return a title that also says the batch size, which the page has in the heading above."""
    batch = column.group.partition(", ")[2]
    return f"{column.title}, {batch}" if batch else column.title


def _columns(rows: Sequence[Result], budget_points: float) -> list[Column]:
    """Return every column that there is: speed and latency at the smallest batch size, throughput at the largest."""
    metric = next((row.small_batch.metric_name for row in rows if row.small_batch.metric_name), "metric")
    first, largest = f"batch {rows[0].small_batch.batch_size}", f"batch {rows[0].large_batch.batch_size}"
    groups: dict[str, list[Column]] = {
        "": [Column("model", "Model", lambda row: cells.name(row.small_batch))],
        "Quality": [
            Column(
                "metric",
                metric.capitalize(),
                lambda row: cells.metric(row.small_batch),
                "%" if in_percent(metric) else "",
            ),
            Column(
                "kept",
                "Kept",
                lambda row: number(row.small_batch.metric_kept_percent, "{:.1f}%".format),
                "%",
                wide=True,
            ),
            Column("difference", "Points lost or won", lambda row: cells.difference(row.small_batch)),
            Column("verdict", f"Within {budget_points:g}?", lambda row: cells.verdict(row.small_batch, budget_points)),
            Column("mcnemar_p", "McNemar p", lambda row: cells.mcnemar(row.small_batch), wide=True),
            Column("agreement", "Agreement", lambda row: share(row.small_batch.agreement), "%", wide=True),
            Column(
                "calibration_error", "Calibration error", lambda row: cells.calibration(row.small_batch), "%", wide=True
            ),
        ],
        f"Speed, {first}": [
            Column("speedup", "Speed-up", lambda row: ratio(row.small_batch, "speedup")),
            Column(
                "speedup_with_tokenizer",
                "With tokenizer",
                lambda row: ratio(row.small_batch, "speedup_with_tokenizer"),
            ),
            Column(
                "speedup_same_runtime",
                "In the same runtime",
                lambda row: ratio(row.small_batch, "speedup_same_runtime"),
                wide=True,
            ),
        ],
        f"Latency observed, {first}": [
            Column("latency_p50_ms", "p50", lambda row: speed(row.small_batch, "latency_p50_ms", milliseconds), "ms"),
            Column(
                "latency_p95_ms",
                "p95",
                lambda row: speed(row.small_batch, "latency_p95_ms", milliseconds),
                "ms",
                wide=True,
            ),
            Column(
                "latency_p99_ms",
                "p99",
                lambda row: speed(row.small_batch, "latency_p99_ms", milliseconds),
                "ms",
                wide=True,
            ),
            Column(
                "device_p50_ms",
                "p50, GPU alone",
                lambda row: number(row.small_batch.device_p50_ms, milliseconds),
                "ms",
                wide=True,
            ),
        ],
        f"Throughput observed, {largest}": [
            Column("speedup_large", "Speed-up", lambda row: ratio(row.large_batch, "speedup"), wide=True),
            Column(
                "rows_per_second",
                "Rows/s",
                lambda row: speed(row.large_batch, "throughput_rows_per_second", shown_rate),
            ),
            Column(
                "rows_with_tokenizer",
                "Rows/s with tokenizer",
                lambda row: speed(row.large_batch, "throughput_with_tokenizer_rows_per_second", shown_rate),
                wide=True,
            ),
            Column(
                "tokens",
                "Tokens/s",
                lambda row: speed(row.large_batch, "throughput_tokens_per_second", shown_rate),
                wide=True,
            ),
            Column("peak_share", "Of matmul peak", lambda row: cells.peak(row.large_batch), "%", wide=True),
            Column(
                "energy",
                "Energy a row",
                lambda row: number(row.large_batch.energy_joules_per_row, "{:.3g} J".format),
                "J",
                wide=True,
            ),
        ],
        "Size": [
            Column("parameters", "Parameters", lambda row: cells.parameters(row.small_batch)),
            Column("size_bytes", "Disk", lambda row: cells.disk(row.small_batch), "bytes"),
            Column(
                "memory_bytes",
                "Memory",
                lambda row: number(row.small_batch.model_memory_bytes, megabytes),
                "bytes",
                wide=True,
            ),
            Column(
                "gpu_bytes",
                "GPU memory",
                lambda row: number(row.large_batch.peak_gpu_memory_bytes, megabytes),
                "bytes",
                wide=True,
            ),
        ],
        "Other": [
            Column("load_ms", "Load", lambda row: number(row.small_batch.load_ms, milliseconds), "ms", wide=True),
            Column("noise", "Noise", lambda row: share(row.small_batch.noise), "%", wide=True),
        ],
    }
    return [replace(column, group=group) for group, columns in groups.items() for column in columns]
