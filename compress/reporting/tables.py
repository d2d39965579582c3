"""Tables of a report: cells with a number and its interval, the table of all results, and that over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter

from compress.benchmarking.results import formatting
from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.files import Result, grouped, largest_batch, smallest_batch
from compress.benchmarking.results.formatting import NONE, in_percent, megabytes, milliseconds, points, shown, times
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.results.verdict import judge_drop_of
from compress.escaping.markdown import Markdown

MakeCell = Callable[[Measurement], "Cell"]
# Of a field that ``report.json`` does not have.
PAGE_ONLY = {"page_only": True}
# What fits beside each other in a pull request.
ESSENTIAL = ("model", "metric", "difference", "verdict", "speedup", "latency_p50_ms", "rows_per_second", "size_bytes")


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


@dataclass(frozen=True)
class ReportTable:
    """Headings and rows of cells; the first column names its row."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def markdown(self) -> Markdown:
        return formatting.table(self.headings, self.rows)


def setting_text(line: Measurement) -> str:
    """Return what ran a row and how: the kind of row unless it is a model, its runtime, and its padding."""
    padding = f"padded to {line.max_length}" if line.padding == "max_length" else ""
    return ", ".join(filter(None, (formatting.kind_text(line), line.runtime, padding)))


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
    return Cell(form(value), formatting.span(*map(ends or form, (low, high))), scale * value, scale * low, scale * high)


share = partial(number, form="{:.1%}".format, scale=100)


def speed(line: Measurement, key: str, form: Callable[[float], str]) -> Cell:
    """Return a speed, latency or throughput with its interval."""
    interval, value = line.interval(key), getattr(line, key)
    if interval is None or value is None:
        return number(value, form)
    small = formatting.speed_span(interval, lambda end: form(end).removesuffix(" ms"))
    return Cell(form(value), small, value, interval.low, interval.high)


def ratio(line: Measurement, key: str) -> Cell:
    """Return a speed-up with its interval; the teacher's own, which is 1, has none."""
    return number(1.0, times) if line.kind == "teacher" and getattr(line, key) == 1.0 else speed(line, key, times)


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
    ends, scale = partial(shown, metric=metric, digits=1), 100 if in_percent(metric) else 1
    return number(value, partial(shown, metric=metric), interval, ends=ends, scale=scale, small=small)


def metric(line: Measurement) -> Cell:
    return metric_cell(line.metric, line.metric_name, line.figure("metric")[1:])


def difference(line: Measurement) -> Cell:
    """Return the difference to the teacher in points, with its paired interval."""
    if line.difference is None or line.is_reference:
        return EMPTY
    value, *interval = line.difference
    return number(value, points, (interval[0], interval[1]))


def calibration(line: Measurement) -> Cell:
    """Return the expected calibration error with its interval, in percent."""
    return share(line.calibration_error, interval=line.figure("calibration_error")[1:])


def _smaller(ratio: float | None) -> str:
    """Say how many times smaller than the teacher something is; nothing where it is not."""
    return "" if ratio is None or ratio < 1.05 else f"÷{ratio:,.{0 if ratio >= 100 else 1}f}"


def parameters(line: Measurement) -> Cell:
    """Return the number of weights, and how many times fewer than the teacher's."""
    return number(line.parameters or None, formatting.count, small=_smaller(line.parameters_ratio))


def disk(line: Measurement) -> Cell:
    """Return the size on disk, and how many times smaller than the teacher's."""
    return number(line.size_bytes, megabytes, small=_smaller(line.size_ratio))


@dataclass(frozen=True)
class Column:
    """A column of the results table; ``wide`` ones are shown on request only.

    ``cell`` gets a row's line of ``batch_size``; without one any line, as for what all batch sizes have in common.
    ``unit`` is that of the numbers.
    """

    key: str
    title: str
    cell: MakeCell = field(metadata=PAGE_ONLY)
    unit: str = ""
    wide: bool = False
    group: str = ""
    batch_size: int | None = field(default=None, metadata=PAGE_ONLY)

    def of(self, row: Result) -> Cell:
        line = row.small_batch if self.batch_size is None else row.at(self.batch_size)
        return self.cell(line) if line else EMPTY


@dataclass(frozen=True)
class TableRow:
    """A row of the results table, with a cell for every column."""

    kind: str
    model: str
    runtime: str
    cells: list[Cell]


@dataclass(frozen=True)
class ResultsTable:
    """Every figure of every row, as text and as numbers to sort by."""

    columns: list[Column]
    rows: list[TableRow]

    def groups(self, *, wide: bool) -> list[tuple[str, int]]:
        """Return the headings above the columns and how many columns each spans, the first column left out."""
        shown = (column.group for column in self.columns[1:] if wide or not column.wide)
        return [(group, len(list(same))) for group, same in groupby(shown)]

    @property
    def markdown(self) -> Markdown:
        """The most telling columns; their titles say the batch size, which the page has in the heading above."""
        shown = [index for index, column in enumerate(self.columns) if column.key in ESSENTIAL]
        batches = [self.columns[index].group.partition(", ")[2] for index in shown]
        headings = [", ".join(filter(None, (self.columns[i].title, b))) for i, b in zip(shown, batches, strict=True)]
        return formatting.table(headings, [[row.cells[index] for index in shown] for row in self.rows])


def results(rows: Sequence[Result], budget_points: float) -> ResultsTable:
    """Return the table of rows that may be compared; a column that is empty in all of them is left out."""
    made = [(column, [column.of(row) for row in rows]) for column in _columns(rows, budget_points)]
    made = [(column, down) for column, down in made if any(cell.text != NONE for cell in down)]
    across = zip(*(down for _, down in made), strict=True)
    heads = [row.small_batch for row in rows]
    return ResultsTable(
        [column for column, _ in made],
        [TableRow(one.kind, one.model, one.runtime, list(cells)) for one, cells in zip(heads, across, strict=True)],
    )


def _columns(rows: Sequence[Result], budget_points: float) -> list[Column]:
    """Return every column that there is: speed and latency at the smallest batch size, throughput at the largest."""
    metric_name = next((row.small_batch.metric_name for row in rows if row.small_batch.metric_name), "metric")
    smallest, largest = smallest_batch(rows), largest_batch(rows)
    wide = partial(Column, wide=True)

    def within(line: Measurement) -> Cell:
        judged = None if line.is_reference else judge_drop_of(line, budget_points)
        return EMPTY if judged is None else Cell(judged.outcome, judged.short, judged.outcome)

    def mcnemar(line: Measurement) -> Cell:
        return EMPTY if line.is_reference else number(line.mcnemar_p, formatting.probability)

    def calibration_error(line: Measurement) -> Cell:
        cell = calibration(line)
        return replace(cell, small=cell.small.replace("%", "", 1))

    def peak(line: Measurement) -> Cell:
        known = line.matmul_peak_tflops
        return share(line.matmul_peak_share, small=f"of {known:,.1f} TFLOP/s" if known else "")

    def plain(key: str, form: Callable[[float], str] = "{:.1%}".format, scale: float = 100) -> MakeCell:
        return lambda line: number(getattr(line, key), form, scale=scale)

    latency, rate = partial(partial, speed, form=milliseconds), partial(partial, speed, form=formatting.shown_rate)
    groups: dict[tuple[str, int | None], list[Column]] = {
        ("", None): [Column("model", "Model", name)],
        ("Quality", None): [
            Column("metric", metric_name.capitalize(), metric, "%" if in_percent(metric_name) else ""),
            wide("kept", "Kept", plain("metric_kept_percent", "{:.1f}%".format, 1), "%"),
            Column("difference", "Points lost or won", difference),
            Column("verdict", f"Within {budget_points:g}?", within),
            wide("mcnemar_p", "McNemar p", mcnemar),
            wide("agreement", "Agreement", plain("agreement"), "%"),
            Column("batch_dependent_share", "Depend on the batch", plain("batch_dependent_share"), "%"),
            wide("calibration_error", "Calibration error", calibration_error, "%"),
        ],
        (f"Speed, batch {smallest}", smallest): [
            Column("speedup", "Speed-up", partial(ratio, key="speedup")),
            Column("speedup_with_tokenizer", "With tokenizer", partial(ratio, key="speedup_with_tokenizer")),
            wide("speedup_same_runtime", "In the same runtime", partial(ratio, key="speedup_same_runtime")),
        ],
        (f"Latency observed, batch {smallest}", smallest): [
            Column("latency_p50_ms", "p50", latency(key="latency_p50_ms"), "ms"),
            wide("latency_p95_ms", "p95", latency(key="latency_p95_ms"), "ms"),
            wide("latency_p99_ms", "p99", latency(key="latency_p99_ms"), "ms"),
            wide("device_p50_ms", "p50, GPU alone", plain("device_p50_ms", milliseconds, 1), "ms"),
        ],
        (f"Throughput observed, batch {largest}", largest): [
            wide("speedup_large", "Speed-up", partial(ratio, key="speedup")),
            Column("rows_per_second", "Rows/s", rate(key="throughput_rows_per_second")),
            wide(
                "rows_with_tokenizer",
                "Rows/s with tokenizer",
                rate(key="throughput_with_tokenizer_rows_per_second"),
            ),
            wide("tokens", "Tokens/s", rate(key="throughput_tokens_per_second")),
            wide("peak_share", "Of matmul peak", peak, "%"),
            wide("energy", "Energy a row", plain("energy_joules_per_row", "{:.3g} J".format, 1), "J"),
        ],
        ("Size", None): [
            Column("parameters", "Parameters", parameters),
            Column("size_bytes", "Disk", disk, "bytes"),
            wide("memory_bytes", "Memory", plain("model_memory_bytes", megabytes, 1), "bytes"),
            wide("gpu_bytes", "GPU memory", plain("peak_gpu_memory_bytes", megabytes, 1), "bytes", batch_size=largest),
        ],
        ("Other", None): [
            wide("load_ms", "Load", plain("load_ms", milliseconds, 1), "ms"),
            wide("noise", "Noise", plain("noise"), "%"),
        ],
    }
    return [
        replace(column, group=group, batch_size=column.batch_size or size)
        for (group, size), columns in groups.items()
        for column in columns
    ]


SEEDS_HEADINGS = [
    "Recipe",
    "Seeds",
    "Data sets",
    "Metric, mean",
    "Standard deviation",
    "Points to the teacher",
    "Gain from distillation",
    "Notes",
]


def repeats(lines: Sequence[Measurement]) -> ReportTable | None:
    """Return means and intervals of recipes over seeds and data sets; None where everything was measured once."""
    trained = [line for line in lines if line.recipe and line.training_seed is not None]
    repeated = grouped(trained, attrgetter("recipe", "kind")).values()
    if len({line.data_sha256 for line in lines}) < 2 and all(
        len({line.training_seed for line in same}) < 2 for same in repeated
    ):
        return None
    return recipe_table(lines)


def recipe_table(lines: Sequence[Measurement]) -> ReportTable:
    """Return a row a recipe, of one seed or several."""
    rows = [_recipe_row(one) for one in aggregate(lines) if one.kind != "teacher" or one.data_sets > 1]
    return ReportTable(SEEDS_HEADINGS, rows)


def _recipe_row(one: Aggregate) -> list[Cell]:
    device = "" if one.device == "cpu" else one.device
    where = ", ".join(filter(None, ("" if one.kind == "model" else one.kind, one.stage, one.runtime, device)))
    return [
        Cell(one.name, where, one.name),
        number(one.seeds, str),
        number(one.data_sets, str),
        metric_cell(one.metric, one.metric_name, small=one.metric_name),
        Cell(shown(one.metric_spread, one.metric_name).removesuffix("%"), "", one.metric_spread),
        number(one.difference_points, points, (one.low, one.high)),
        number(one.gain_points, points, (one.gain_low, one.gain_high)),
        Cell("; ".join(one.notes) or NONE),
    ]
