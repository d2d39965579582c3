"""Tables of a report: all results, means over seeds, costs, and rows and classes that changed; cells of a result."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.files import Result, largest_batch, smallest_batch
from compress.benchmarking.results.formatting import (
    NONE,
    count,
    in_percent,
    kind_text,
    megabytes,
    milliseconds,
    money,
    plural,
    points,
    probability,
    shown,
    shown_rate,
    speed_span,
    table,
    times,
)
from compress.benchmarking.results.schema import TEXT_RATE, Measurement
from compress.benchmarking.results.verdict import judge_drop_of
from compress.data.examples import Example, finite_number
from compress.errors import CompressError, refuse
from compress.escaping import Markdown
from compress.evaluation.metrics import answer_name
from compress.inference.speedup_intervals import Interval
from compress.reporting.pages import EMPTY, PAGE_ONLY, Cell, ReportTable, integer, metric_cell, number, share

MakeCell = Callable[[Measurement], Cell]
# What fits beside each other in a pull request.
ESSENTIAL = (
    *("model", "metric", "difference", "verdict"),
    *("speedup", "speedup_model", "text_p50_ms", "rows_with_tokenizer", "size_bytes"),
)


def setting_text(line: Measurement) -> str:
    """Return what ran a row and how: the kind of row unless it is a model, its runtime, and its padding."""
    padding = f"padded to {line.max_length}" if line.padding == "max_length" else ""
    return ", ".join(filter(None, (kind_text(line), line.runtime, padding)))


def speed(line: Measurement, key: str, form: Callable[[float], str] = times) -> Cell:
    """Return a speed, latency or throughput with its interval; the teacher's own speed-up, which is 1, has none."""
    value = getattr(line, key)
    interval, value = (value, value.value) if isinstance(value, Interval) else (line.interval(key), value)
    if interval is None or value is None or (form is times and line.kind == "teacher" and value == 1.0):
        return number(value, form)
    small = speed_span(interval, lambda end: form(end).removesuffix(" ms"))
    return Cell(form(value), small, value, interval.low, interval.high)


def _plain(key: str, form: Callable[[float], str] = "{:.1%}".format, scale: float = 100) -> MakeCell:
    return lambda line: number(getattr(line, key), form, scale=scale)


def _smaller(ratio: float | None) -> str:
    """Say how many times smaller than the teacher something is; nothing where it is not."""
    return "" if ratio is None or ratio < 1.05 else f"÷{ratio:,.{0 if ratio >= 100 else 1}f}"


# What is shown of a line: the number, and below it its interval, what ran it, or how many times less it is.
CELLS: dict[str, MakeCell] = {
    "model": lambda line: Cell(line.model, setting_text(line), line.model),
    "metric": lambda line: metric_cell(line.metric, line.metric_name, line.figure("metric")[1:]),
    "kept": _plain("metric_kept_percent", "{:.1f}%".format, 1),
    "difference": lambda line: (
        number(line.difference.value, points, line.difference[1:])
        if line.difference and not line.is_reference
        else EMPTY
    ),
    "mcnemar_p": lambda line: EMPTY if line.is_reference else number(line.mcnemar_p, probability),
    "agreement": _plain("agreement"),
    "batch_dependent_share": _plain("batch_dependent_share"),
    "calibration_error": lambda line: share(line.calibration_error, interval=line.figure("calibration_error")[1:]),
    "speedup": lambda line: speed(line, "speedups"),
    "speedup_model": lambda line: EMPTY if line.tokenizer_inside else speed(line, "speedup"),
    "speedup_same_runtime": lambda line: speed(line, "speedup_same_runtime"),
    "text_p50_ms": lambda line: speed(line, "text_p50_ms", milliseconds),
    "latency_p50_ms": lambda line: speed(line, "latency_p50_ms", milliseconds),
    "latency_p95_ms": lambda line: speed(line, "latency_p95_ms", milliseconds),
    "latency_p99_ms": lambda line: speed(line, "latency_p99_ms", milliseconds),
    "device_p50_ms": _plain("device_p50_ms", milliseconds, 1),
    "speedup_large": lambda line: speed(line, "speedups"),
    "rows_per_second": lambda line: speed(line, "throughput_rows_per_second", shown_rate),
    "rows_with_tokenizer": lambda line: speed(line, TEXT_RATE, shown_rate),
    "tokens": lambda line: speed(line, "throughput_tokens_per_second", shown_rate),
    "peak_share": lambda line: share(
        line.matmul_peak_share,
        small=f"of {line.matmul_peak_tflops:,.1f} TFLOP/s" if line.matmul_peak_tflops else "",
    ),
    "energy": _plain("energy_joules_per_row", "{:.3g} J".format, 1),
    "parameters": lambda line: number(line.parameters or None, count, small=_smaller(line.parameters_ratio)),
    "size_bytes": lambda line: number(line.size_bytes, megabytes, small=_smaller(line.size_ratio)),
    "memory_bytes": _plain("model_memory_bytes", megabytes, 1),
    "gpu_bytes": _plain("peak_gpu_memory_bytes", megabytes, 1),
    "load_ms": _plain("load_ms", milliseconds, 1),
    "noise": _plain("noise"),
}


@dataclass(frozen=True)
class Column:
    """A column of the results table: a figure of a row's line of ``batch_size``, or of any line without one.

    ``wide`` ones are shown on request only; ``unit`` is that of the numbers.
    """

    key: str
    title: str
    unit: str = ""
    wide: bool = False
    group: str = ""
    batch_size: int | None = field(default=None, metadata=PAGE_ONLY)


@dataclass(frozen=True)
class TableRow:
    """A row of the results table, with a cell for every column by its key."""

    kind: str
    model: str
    runtime: str
    cells: dict[str, Cell]


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
        shown = [column for column in self.columns if column.key in ESSENTIAL]
        headings = [", ".join(filter(None, (one.title, one.group.partition(", ")[2]))) for one in shown]
        return table(headings, [[row.cells[column.key] for column in shown] for row in self.rows])


def results(rows: Sequence[Result], budget_points: float) -> ResultsTable:
    """Return the table of rows that may be compared; a column that is empty in all of them is left out."""

    def within(line: Measurement) -> Cell:
        judged = None if line.is_reference else judge_drop_of(line, budget_points)
        return Cell(judged.outcome, judged.short, judged.outcome) if judged else EMPTY

    def cell(row: Result, column: Column) -> Cell:
        line = row.small_batch if column.batch_size is None else row.at(column.batch_size)
        found = (CELLS | {"verdict": within})[column.key](line) if line else EMPTY
        # The interval of an error is in the unit of the number above it.
        return replace(found, small=found.small.replace("%", "", 1)) if column.key == "calibration_error" else found

    columns = _columns(rows, budget_points)
    cells = [{column.key: cell(row, column) for column in columns} for row in rows]
    kept = [column for column in columns if any(row[column.key].text != NONE for row in cells)]
    made = [
        TableRow(line.kind, line.model, line.runtime, {column.key: own[column.key] for column in kept})
        for line, own in zip((row.small_batch for row in rows), cells, strict=True)
    ]
    return ResultsTable(kept, made)


def _columns(rows: Sequence[Result], budget_points: float) -> list[Column]:
    metric_name = next((row.small_batch.metric_name for row in rows if row.small_batch.metric_name), "metric")
    smallest, largest = smallest_batch(rows), largest_batch(rows)
    wide = partial(Column, wide=True)
    groups: dict[tuple[str, int | None], list[Column]] = {
        ("", None): [Column("model", "Model")],
        ("Quality", None): [
            Column("metric", metric_name.capitalize(), "%" if in_percent(metric_name) else ""),
            wide("kept", "Kept", "%"),
            Column("difference", "Points lost or won"),
            Column("verdict", f"Within {budget_points:g}?"),
            wide("mcnemar_p", "McNemar p"),
            wide("agreement", "Agreement", "%"),
            Column("batch_dependent_share", "Depend on the batch", "%"),
            wide("calibration_error", "Calibration error", "%"),
        ],
        (f"Speed, batch {smallest}", smallest): [
            Column("speedup", "Speed-up"),
            Column("speedup_model", "Model alone"),
            wide("speedup_same_runtime", "Alone, in the same runtime"),
        ],
        (f"Latency observed, batch {smallest}", smallest): [
            Column("text_p50_ms", "p50", "ms"),
            wide("latency_p50_ms", "p50, model alone", "ms"),
            wide("latency_p95_ms", "p95, model alone", "ms"),
            wide("latency_p99_ms", "p99, model alone", "ms"),
            wide("device_p50_ms", "p50, GPU alone", "ms"),
        ],
        (f"Throughput observed, batch {largest}", largest): [
            wide("speedup_large", "Speed-up"),
            Column("rows_with_tokenizer", "Rows/s"),
            wide("rows_per_second", "Rows/s, model alone"),
            wide("tokens", "Tokens/s"),
            wide("peak_share", "Of matmul peak", "%"),
            wide("energy", "Energy a row", "J"),
        ],
        ("Size", None): [
            Column("parameters", "Parameters"),
            Column("size_bytes", "Disk", "bytes"),
            wide("memory_bytes", "Memory", "bytes"),
            wide("gpu_bytes", "GPU memory", "bytes", batch_size=largest),
        ],
        ("Other", None): [wide("load_ms", "Load", "ms"), wide("noise", "Noise", "%")],
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
    recipes = {(line.recipe, line.kind) for line in trained}
    is_once = len({(line.recipe, line.kind, line.training_seed) for line in trained}) == len(recipes)
    if is_once and len({line.data_sha256 for line in lines}) < 2:
        return None
    rows = [_recipe_row(one) for one in aggregate(lines) if one.kind != "teacher" or one.data_sets > 1]
    return ReportTable("Over seeds and data sets", SEEDS_HEADINGS, rows)


def _recipe_row(one: Aggregate) -> list[Cell]:
    kind, device = "" if one.kind == "model" else one.kind, "" if one.device == "cpu" else one.device
    return [
        Cell(one.name, ", ".join(filter(None, (kind, one.stage, one.runtime, device))), one.name),
        number(one.seeds, str),
        number(one.data_sets, str),
        metric_cell(one.metric, one.metric_name, small=one.metric_name),
        Cell(shown(one.metric_spread, one.metric_name).removesuffix("%"), "", one.metric_spread),
        number(one.difference_points, points, (one.low, one.high)),
        number(one.gain_points, points, (one.gain_low, one.gain_high)),
        Cell("; ".join(one.notes) or NONE),
    ]


DEVICES = ("cpu", "cuda")
COST_HEADINGS = [
    "Machine",
    "Data",
    "Model",
    "Price an hour",
    "Predictions an hour",
    "Cost of 1,000",
    "Cost of a million",
    "Energy a prediction",
]
# (device, threads or None for any) -> price an hour.
Prices = Mapping[tuple[str, int | None], float]


@dataclass(frozen=True)
class Offer:
    """A machine as measured, which a price can be typed for."""

    key: str
    title: str
    price_per_hour: float | None


@dataclass(frozen=True)
class Costs:
    """What the teacher and the best models cost on every machine; ``machines`` are the offers' keys, row by row.

    A price is that of the whole machine as it was measured; none is ever made up. Throughput is that of the largest
    batch, tokenisation included.
    """

    currency: str
    offers: list[Offer]
    table: ReportTable
    machines: list[str]


def parse_prices(texts: Iterable[str]) -> dict[tuple[str, int | None], float]:
    """Read prices an hour such as ``cpu=0.34``, ``cuda=2.5`` or, for a thread count, ``cpu:8=0.34``.

    Raises:
        CompressError: one of them is something else, or a machine is priced twice.
    """
    found: dict[tuple[str, int | None], float] = {}
    for text in texts:
        machine, _, amount = text.partition("=")
        known = re.fullmatch(rf"({'|'.join(DEVICES)})(?::(0*[1-9][0-9]{{0,8}}))?", machine.strip())
        price = finite_number(amount.strip())
        if not known or price is None or price <= 0:
            raise CompressError(
                f"--price {text!r} is not a price an hour; type a device, for a thread count a colon and its number, "
                "and the amount, such as --price cpu=0.34, --price cpu:8=0.34 or --price cuda=2.5"
            )
        key = (known[1], int(known[2]) if known[2] else None)
        refuse((key in found, f"--price {text!r} prices {machine.strip()} a second time; give each price once"))
        found[key] = price
    return found


def costs_of(rows: Sequence[Result], best: Sequence[Measurement], prices: Prices, currency: str) -> Costs | None:
    """Return what the teacher in torch and the best models cost wherever they were measured.

    Args:
        rows: everything of the data, as long as its own rows; hosts, devices and thread counts may differ.
        best: the best lines of every section; each is followed over all thread counts of its device.

    Raises:
        CompressError: a price is for a device or thread count that was not measured.
    """
    machine = attrgetter("small_batch.device", "small_batch.threads")
    measured = sorted(set(map(machine, rows)))
    for device, threads in prices:
        named, there = device if threads is None else f"{device}:{threads}", ", ".join(f"{d}:{t}" for d, t in measured)
        is_there = any(device == d and threads in (None, t) for d, t in measured)
        refuse((not is_there, f"--price {named} is for a machine that was not measured; there is {there}"))
    same, as_usual = attrgetter("model_sha256", "model", "runtime"), attrgetter("padding", "length")
    wanted = set(map(same, best))
    chosen = [row for row in rows if row.small_batch.is_reference or same(row.small_batch) in wanted]
    chosen = [row for row in chosen if as_usual(row.small_batch) == ("longest", None)] or chosen
    chosen.sort(key=lambda row: (*machine(row), not row.small_batch.is_reference))  # cpu, then cuda
    several = len({row.small_batch.data for row in chosen}) > 1
    amount = partial(money, currency=currency)
    offers, machines, cells = dict[str, Offer](), [], []
    for row in chosen:
        head, line = row.small_batch, row.large_batch
        title = f"{head.host.get('cpu', 'unknown processor')}, {plural(head.threads, 'thread')}"
        if head.device == "cuda":
            title = str((head.host.get("gpu") or ["GPU"])[0])
        price = prices.get((head.device, head.threads), prices.get((head.device, None)))
        machines.append(f"{head.host_id}-{head.device}-{head.threads}")
        offers[machines[-1]] = Offer(machines[-1], title, price)
        per_hour = 3600 * line.throughput_with_tokenizer_rows_per_second
        hourly, thousand, million = (
            number(None if price is None else price * share, amount) for share in (1, 1e3 / per_hour, 1e6 / per_hour)
        )
        cells.append(
            [
                Cell(title),
                Cell(line.data) if several else EMPTY,
                Cell(line.model, f"{setting_text(line)}, batch {line.batch_size}"),
                hourly,
                number(per_hour, shown_rate),
                thousand,
                million,
                CELLS["energy"](line),
            ]
        )
    cost_table = ReportTable("Cost of predictions", COST_HEADINGS, cells).without_empty(("Data", "Energy a prediction"))
    return Costs(currency, list(offers.values()), cost_table, machines) if cells else None


WORST_SHOWN = 10  # flips


@dataclass(frozen=True)
class Flips:
    """What one model changed: rows lost and won against the teacher, the worst of them, and the classes by loss.

    The value of a row is its number in the test set, from 0 and without a header; the page counts from 1, as messages
    do. Changes are of the gold label's probability, in points. For tagging rows are sentences.
    """

    model: str
    runtime: str
    kind: str
    lost_rows: int
    won_rows: int
    lost: ReportTable
    won: ReportTable
    classes: ReportTable
    slices: ReportTable
    calibration: str


def flips_of(lines: Sequence[Measurement], texts: Mapping[str, Sequence[str]]) -> list[Flips]:
    """Return what every model changed, one runtime each, in the order of the lines; a competitor has rows of its own.

    ``texts`` are the rows of a data set by its content hash.
    """
    first: dict[tuple[str, str, str], Measurement] = {}
    for line in lines:
        if line.kind != "teacher" and line.flips_lost_rows is not None:
            tool = line.runtime if line.kind == "competitor" else ""  # each answers in its own way
            first.setdefault((line.model, line.model_sha256, tool), line)
    found = []
    for line in first.values():
        lost, won = (
            _flip_table(f"Rows that {line.model} {what}", flips, line.labels, texts.get(line.data_sha256, ()))
            for what, flips in (("lost", line.flips_lost), ("won", line.flips_won))
        )
        by_class = _parts_table(line, "class", "label", "recall", share)
        by_slice = _parts_table(line, "slice", "slice", "metric", partial(metric_cell, metric=line.metric_name))
        counts = (line.flips_lost_rows or 0, line.flips_won_rows or 0)
        error = str(CELLS["calibration_error"](line))
        found.append(Flips(line.model, line.runtime, line.kind, *counts, lost, won, by_class, by_slice, error))
    return found


def _parts_table(line: Measurement, part: str, name: str, figure: str, cell: Callable[[Any], Cell]) -> ReportTable:
    """Return what classes or slices lost to the teacher, the greatest loss first."""
    rows = [
        [
            Cell(one[name]),
            integer(one["rows"]),
            cell(one[figure]),
            cell(one[f"teacher_{figure}"]),
            number(one["difference_points"], points, (one["low"], one["high"])),
            integer(one.get("lost")),
            integer(one.get("won")),
            share(one.get("precision")),
            *(
                share(one.get(figure), interval=(one.get(f"{figure}_low"), one.get(f"{figure}_high")))
                for figure in ("f1", "average_precision")
            ),
        ]
        for one in (line.classes if part == "class" else line.slices)
    ]
    rows.sort(key=lambda row: (row[4].value is None, row[4].value or 0.0))
    of_some = ["Lost", "Won", "Precision", "F1", "Average precision"]
    headings = [part.capitalize(), "Rows", figure.capitalize(), "Of the teacher", "Points", *of_some]
    return ReportTable(f"{line.model} by {part}", headings, rows).without_empty(of_some)


def _flip_table(
    title: str, flips: Sequence[Mapping[str, Any]], labels: Sequence[str], texts: Sequence[str]
) -> ReportTable:
    def name(value: Any) -> Cell:
        """Return a class, or a set of labels, by its name, and a score as it is."""
        return Cell(answer_name(value, labels))

    rows, shown = [], []
    for one in flips[:WORST_SHOWN]:
        row = one["row"]
        rows.append(
            [Cell(str(row + 1), "", row), name(one["gold"]), name(one["predicted"]), number(one["change"], points)]
        )
        if row < len(texts):
            text, word = texts[row], one.get("word")
            if word is not None:
                words = Example(text).words  # a row to tag is a sentence, its words apart
                missing = f"a flip is of word {word + 1} of row {row + 1}, which has {len(words)}"
                refuse((word >= len(words), f"{missing}; run the benchmark again"))
                text = f"{words[word]}: {text}"
            shown.append(text)
    return ReportTable(title, ["Row", "Gold", "Predicted", "Change"], rows, texts=shown)
