"""The report as one view, which the HTML and Markdown templates render, and as data for programs.

``report.json`` holds what the page shows. Its shape is that of the dataclasses behind the page. Two things differ:
pictures and what is for the page alone are left out, and the cells of a table's row are named by its columns. A cell
has ``text`` and ``small`` as shown, and ``value`` with its interval ``low`` to ``high`` as numbers or null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from compress.benchmarking.results.files import results_of
from compress.benchmarking.results.schema import Measurement
from compress.models.training_log import TrainingLog
from compress.reporting.charts.pruning_curve import Curve, draw_curve
from compress.reporting.charts.training_curve import Trainings, trainings_of
from compress.reporting.provenance import Known, Origin, ShownLock, known_models, left_out, origins
from compress.reporting.sections import Section, gather, section
from compress.reporting.tables.cells import Cell
from compress.reporting.tables.cost import Costs, Prices, costs_of
from compress.reporting.tables.results_table import ResultsTable, TableRow
from compress.reporting.tables.seeds_table import repeats

FORMAT = 1  # of report.json
# A model's name, a metric and the points, as compress.reporting.charts.pruning_curve.read_curve reads them.
ReadCurve = tuple[str, str, list[dict[str, str]]]


@dataclass(frozen=True)
class Options:
    """What whoever makes the report may choose: the budget of the verdict, prices and their currency, a title.

    ``texts`` are the rows of a data set by its content hash; they are shown on the page and nowhere else.
    """

    budget_points: float = 1.0
    prices: Prices = field(default_factory=dict)
    currency: str = ""
    title: str = ""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """Everything that is shown."""

    title: str
    budget_points: float
    hosts: int
    sections: list[Section]
    curves: list[Curve]
    trainings: Trainings | None
    costs: Costs | None
    repeats: list[list[Cell]]
    origins: list[Origin]
    models: list[Known]
    left_out: list[tuple[str, str]]
    locks: list[ShownLock]


def view(
    lines: Sequence[Measurement],
    curves: Sequence[ReadCurve] = (),
    locks: Sequence[ShownLock] = (),
    options: Options = Options(),
    logs: Sequence[TrainingLog] = (),
) -> Page:
    """Return the report of result lines.

    Raises:
        CompressError: a price is for a machine that was not measured.
    """
    measured = gather(lines, options.budget_points)
    best = [line for part in measured for line in part.leaders.models]
    studies = sorted({line.study for line in lines if line.study})
    return Page(
        title=options.title or ", ".join(studies) or f"Compression on {lines[0].data}",
        budget_points=options.budget_points,
        hosts=len({line.host_id for line in lines}),
        sections=[section(part, options.texts) for part in measured],
        curves=[draw_curve(*curve) for curve in curves],
        trainings=trainings_of(logs, lines),
        costs=costs_of(results_of(lines), best, options.prices, options.currency),
        repeats=repeats(lines),
        origins=origins(lines),
        models=known_models(lines),
        left_out=left_out(lines),
        locks=list(locks),
    )


def machine(page: Page) -> dict[str, Any]:
    """Return a report as plain data for JSON."""
    return {"format": FORMAT, **_plain(page)}


def _plain(value: Any) -> Any:
    if isinstance(value, ResultsTable):
        return {"columns": _plain(value.columns), "rows": [_row(value, row) for row in value.rows]}
    if is_dataclass(value):
        kept = [one for one in fields(value) if not one.metadata.get("page_only") and "Picture" not in str(one.type)]
        return {one.name: _plain(getattr(value, one.name)) for one in kept}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _row(table: ResultsTable, row: TableRow) -> dict[str, Any]:
    named = {column.key: _plain(cell) for column, cell in zip(table.columns, row.cells, strict=True)}
    return {"kind": row.kind, "model": row.model, "runtime": row.runtime, "cells": named}
