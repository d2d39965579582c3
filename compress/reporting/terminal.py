"""Results as a table on the terminal, and how a model was trained as text with small plots.

The charts of reports are in :mod:`compress.reporting.curves`; rich and the standard library draw none of characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import TYPE_CHECKING

from compress.benchmarking.results.files import largest_batch, results_of, smallest_batch
from compress.benchmarking.results.formatting import (
    NONE,
    count,
    is_wide,
    kind_text,
    megabytes,
    metric_title,
    milliseconds,
    points,
    shown_metric,
    shown_rate,
    times,
)
from compress.benchmarking.results.schema import TEXT_RATE, Measurement
from compress.escaping import terminal_cell
from compress.inference.speedup_intervals import Interval
from compress.models.training_log import Line, TrainingLog, series

if TYPE_CHECKING:
    from rich.table import Table

BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:#"
HEIGHT, COLUMNS, LABELS = 6, 27, 10  # two beside each other fit into 80 columns
WIDTH = LABELS + 1 + COLUMNS
PARTS = 10  # rows of a training without evaluations
FEWEST = 3  # points of a plot
_FIGURES = {"validation": "{:.4f}", "loss": "{:.4f}", "learning_rate": "{:.2e}", "rows_per_second": "{:,.0f}"}


def results_table(lines: Sequence[Measurement]) -> Table:
    """Return results as a table for the terminal: one row a configuration, intervals in brackets."""
    from rich.table import Table

    rows = results_of(lines)
    heads = [row.small_batch for row in rows]
    first = next((line for line in heads if line.is_reference), heads[0])
    smallest, largest = smallest_batch(rows), largest_batch(rows)
    settings = [key for key in ("threads", "length", "padding") if len({getattr(line, key) for line in heads}) > 1]
    title = f"{first.metric_name} on {first.data}, {first.data_rows:,} rows"
    table = Table(title=terminal_cell(title, "table.title"))
    for name in ("model", "runtime"):
        table.add_column(name, overflow="fold")
    for name in (
        *settings,
        metric_title(first.metric_name),
        "points to teacher",
        f"speed-up, batch {smallest}",
        "model alone",
        f"p50 ms, batch {smallest}",
        f"rows/s, batch {largest}",
        "parameters",
        "disk",
        "memory",
    ):
        table.add_column(terminal_cell(name), justify="right")
    for row, line in zip(rows, heads, strict=True):
        kind, at_smallest, at_largest = kind_text(line), row.at(smallest), row.at(largest)
        cells = [
            line.model + (f" ({kind})" if kind else ""),
            line.runtime,
            *(str(getattr(line, key) if getattr(line, key) is not None else "own") for key in settings),
            shown_metric(line).removesuffix("%"),
            "" if line.is_reference else _bracketed(points, line.difference),
            "×1" if line.is_reference else _speed(times, at_smallest.speedups if at_smallest else None),
            times(at_smallest.speedup) if at_smallest and not at_smallest.tokenizer_inside else NONE,
            _speed(
                lambda value: milliseconds(value).removesuffix(" ms"), at_smallest.text_p50_ms if at_smallest else None
            ),
            _speed(shown_rate, at_largest.interval(TEXT_RATE) if at_largest else None),
            count(line.parameters),
            megabytes(line.size_bytes),
            megabytes(line.model_memory_bytes),
        ]
        style = "dim" if line.kind in {"control", "baseline", "reference-model"} else None
        table.add_row(*map(terminal_cell, cells), style=style)
    return table


def _bracketed(form: Callable[[float], str], figure: Interval | None) -> str:
    return NONE if figure is None else "{} [{}, {}]".format(*map(form, figure))


def _speed(form: Callable[[float], str], figure: Interval | None) -> str:
    return _bracketed(form, figure) + (" wide" if figure and is_wide(figure) else "")


def as_text(log: TrainingLog, glyphs: str = BLOCKS) -> str:
    """Return plots and a table for each phase: a row an evaluation, with the means of the lines since the one before.

    Args:
        glyphs: of the plots, from an empty cell to a full one.
    """
    shown = []
    for name, lines in log.phases:
        plots = [
            plot(key, points, glyphs) for key in ("validation", "loss") if len(points := series(lines, key)) >= FEWEST
        ]
        beside = ["   ".join(row).rstrip() for row in zip_longest(*plots, fillvalue=" " * WIDTH)]
        shown.append("\n".join([*([name] if name else []), *beside, *([""] if beside else []), _table(lines)]))
    return "\n\n".join(shown)


def _table(lines: Sequence[Line]) -> str:
    terms = sorted({key for line in lines for key in line if key.startswith("loss/")})
    names = ["validation", "loss", *(terms if len(terms) > 1 else []), "learning_rate", "rows_per_second"]
    rows = [["step", *(name.replace("_", " ") for name in names)]]
    for part in _parts(lines):
        columns = [(_FIGURES.get(name, "{:.4f}"), [value for _, value in series(part, name)]) for name in names]
        rows.append([f"{part[-1]['step']:,}", *(form.format(fmean(own)) if own else NONE for form, own in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _parts(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Yield the lines up to each evaluation, or equal parts where there is none."""
    ends = [number for number, line in enumerate(lines, 1) if "validation" in line]
    ends = ends or sorted({round(len(lines) * part / PARTS) for part in range(1, PARTS + 1)} - {0})
    for start, end in zip([0, *ends], ends, strict=False):
        yield lines[start:end]


def plot(title: str, points: Sequence[tuple[int, float]], glyphs: str = BLOCKS) -> list[str]:
    """Return lines of :data:`WIDTH` characters: a column for equally many steps, from the lowest value to the highest.

    Args:
        points: steps, ascending, and their values; a column is the mean of its own, else the value before it.
        glyphs: of a cell, from empty to full.
    """
    first, last = points[0][0], points[-1][0]
    columns: list[list[float]] = [[] for _ in range(COLUMNS)]
    for step, value in points:
        columns[min(COLUMNS - 1, COLUMNS * max(0, step - first) // max(1, last - first))].append(value)
    values: list[float] = []
    for column in columns:
        values.append(fmean(column) if column else values[-1])  # the first column has the first point
    low, high, full = min(values), max(values), len(glyphs) - 1
    levels = [1 + round((value - low) / ((high - low) or 1) * (HEIGHT * full - 1)) for value in values]
    rows = [f"{'':>{LABELS}} {title:{COLUMNS}.{COLUMNS}}"]
    for row in reversed(range(HEIGHT)):
        label = f"{high:.4g}" if row == HEIGHT - 1 else f"{low:.4g}" if row == 0 else ""
        cells = "".join(glyphs[min(full, max(0, level - full * row))] for level in levels)
        rows.append(f"{label:>{LABELS}} {cells}")
    begin, end = f"{first:,}", f"step {last:,}"
    return [*rows, f"{'':{LABELS}} {begin}{end:>{COLUMNS - len(begin)}}"]


def sparkline(values: Sequence[float]) -> str:
    """Return characters from the lowest value to the highest: one for each, or for the last of equally many."""
    size = -(-len(values) // COLUMNS)
    values = values[(len(values) - 1) % size :: size]
    low, high, levels = min(values), max(values), len(BLOCKS) - 2
    return "".join(BLOCKS[1 + round((value - low) / ((high - low) or 1) * levels)] for value in values)
