"""The results table: every figure of every row, as text and as numbers to sort by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compress.benchmarking.results import formatting
from compress.benchmarking.results.files import Result
from compress.benchmarking.results.formatting import NONE, in_percent, milliseconds
from compress.reporting.tables import cells
from compress.reporting.tables.cells import Cell

# What fits beside each other in a pull request.
ESSENTIAL = ("model", "metric", "difference", "verdict", "speedup", "latency_p50_ms", "rows_per_second", "size_bytes")
Maker = Callable[[Result], Cell]


@dataclass(frozen=True)
class Column:
    """``unit`` is that of the number behind the cells; ``wide`` columns are shown on request only."""

    key: str
    title: str
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
        found: list[tuple[str, int]] = []
        for column in self.columns[1:]:
            if column.wide and not wide:
                continue
            before = found.pop()[1] if found and found[-1][0] == column.group else 0
            found.append((column.group, before + 1))
        return found


def results(rows: Sequence[Result], budget_points: float) -> ResultsTable:
    """Return the table of rows that may be compared; a column that is empty in all of them is left out."""
    one, many = f"batch {rows[0].small_batch.batch_size}", f"batch {rows[0].large_batch.batch_size}"
    plan: list[tuple[Column, Maker]] = [(Column("model", "Model"), cells.name)]
    for group, columns in (
        ("Quality", _quality(rows, budget_points)),
        (f"Speed, {one}", _speed()),
        (f"Latency, {one}", _latency()),
        (f"Throughput, {many}", _throughput()),
        ("Size", _size()),
        ("Other", _other()),
    ):
        plan += [(Column(c.key, c.title, c.unit, c.wide, group), make) for c, make in columns]
    made = [(column, [make(row) for row in rows]) for column, make in plan]
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


def markdown_table(rows: Sequence[Result], budget_points: float = 1.0) -> str:
    """Return the most telling columns of rows as a Markdown table."""
    return as_markdown(results(rows, budget_points))


def as_markdown(table: ResultsTable) -> str:
    """Return a table's most telling columns in Markdown, safe whatever the names hold."""
    at = [index for index, column in enumerate(table.columns) if column.key in ESSENTIAL]
    rows = [[cells.in_one_line(row.cells[i]) for i in at] for row in table.rows]
    return formatting.table([formatting.plain(_title(table.columns[i])) for i in at], rows) + "\n"


def _title(column: Column) -> str:
    """Return a title that also says the batch size, which the page has in the heading above."""
    batch = column.group.partition(", ")[2]
    return f"{column.title}, {batch}" if batch else column.title


def _quality(rows: Sequence[Result], budget_points: float) -> list[tuple[Column, Maker]]:
    metric = next((row.small_batch.metric_name for row in rows if row.small_batch.metric_name), "metric")
    unit, scale = ("%", 100.0) if in_percent(metric) else ("", 1.0)
    return [
        (Column("metric", metric.capitalize(), unit), lambda r: cells.metric(r.small_batch, scale)),
        (Column("kept", "Kept", "%", wide=True), lambda r: cells.percent(r.small_batch.metric_kept_percent)),
        (Column("difference", "Points lost or won"), cells.difference),
        (Column("verdict", f"Within {budget_points:g}?"), lambda r: cells.verdict(r.small_batch, budget_points)),
        (Column("mcnemar_p", "McNemar p", wide=True), cells.mcnemar),
        (Column("agreement", "Agreement", "%", wide=True), lambda r: cells.share(r.small_batch.agreement)),
        (Column("calibration_error", "Calibration error", "%", wide=True), cells.calibration),
    ]


def _speed() -> list[tuple[Column, Maker]]:
    return [
        (Column("speedup", "Speed-up"), lambda r: cells.ratio(r.small_batch, "speedup")),
        (
            Column("speedup_same_runtime", "In the same runtime"),
            lambda r: cells.ratio(r.small_batch, "speedup_same_runtime"),
        ),
        (
            Column("speedup_with_tokenizer", "With tokenizer", wide=True),
            lambda r: cells.ratio(r.small_batch, "speedup_with_tokenizer"),
        ),
    ]


def _latency() -> list[tuple[Column, Maker]]:
    return [
        (Column("latency_p50_ms", "p50", "ms"), cells.p50),
        (Column("latency_p95_ms", "p95", "ms", wide=True), cells.p95),
        (Column("latency_p99_ms", "p99", "ms", wide=True), lambda r: cells.latency(r.small_batch, "latency_p99_ms")),
        (
            Column("device_p50_ms", "p50, GPU alone", "ms", wide=True),
            lambda r: cells.latency(r.small_batch, "device_p50_ms"),
        ),
    ]


def _throughput() -> list[tuple[Column, Maker]]:
    both = "throughput_with_tokenizer_rows_per_second"
    return [
        (Column("speedup_large", "Speed-up", wide=True), lambda r: cells.ratio(r.large_batch, "speedup")),
        (Column("rows_per_second", "Rows/s"), lambda r: cells.rate(r.large_batch, "throughput_rows_per_second")),
        (Column("rows_with_tokenizer", "Rows/s with tokenizer", wide=True), lambda r: cells.rate(r.large_batch, both)),
        (Column("tokens", "Tokens/s", wide=True), lambda r: cells.rate(r.large_batch, "throughput_tokens_per_second")),
        (Column("peak_share", "Of matmul peak", "%", wide=True), cells.peak),
        (Column("energy", "Energy a row", "J", wide=True), cells.energy),
    ]


def _size() -> list[tuple[Column, Maker]]:
    return [
        (Column("parameters", "Parameters"), cells.parameters),
        (Column("size_bytes", "Disk", "bytes"), cells.disk),
        (Column("memory_bytes", "Memory", "bytes", wide=True), lambda r: cells.size(r.small_batch.model_memory_bytes)),
        (
            Column("gpu_bytes", "GPU memory", "bytes", wide=True),
            lambda r: cells.size(r.large_batch.peak_gpu_memory_bytes),
        ),
    ]


def _other() -> list[tuple[Column, Maker]]:
    return [
        (Column("load_ms", "Load", "ms", wide=True), lambda r: cells.number(r.small_batch.load_ms, milliseconds)),
        (Column("noise", "Noise", "%", wide=True), lambda r: cells.share(r.small_batch.noise)),
    ]
