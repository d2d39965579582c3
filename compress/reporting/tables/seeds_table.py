"""Means and intervals of recipes over training seeds and data sets."""

from collections.abc import Sequence
from operator import attrgetter

from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import NONE, points, shown
from compress.benchmarking.results.schema import Measurement
from compress.reporting.tables.cells import Cell, metric_cell, number

HEADINGS = [
    "Recipe",
    "Seeds",
    "Data sets",
    "Metric, mean",
    "Standard deviation",
    "Points to the teacher",
    "Gain from distillation",
    "Notes",
]


def repeats(lines: Sequence[Measurement]) -> list[list[Cell]]:
    """Return a row a recipe under :data:`HEADINGS`; none where everything was measured once."""
    data_sets = {line.data_sha256 for line in lines}
    trained = [line for line in lines if line.recipe and line.training_seed is not None]
    repeated = grouped(trained, attrgetter("recipe", "kind")).values()
    if len(data_sets) < 2 and all(len({line.training_seed for line in same}) < 2 for same in repeated):
        return []
    return recipe_rows(lines)


def recipe_rows(lines: Sequence[Measurement]) -> list[list[Cell]]:
    """Return a row a recipe under :data:`HEADINGS`, of one seed or several."""
    return [_row(one) for one in aggregate(lines) if one.kind != "teacher" or one.data_sets > 1]


def _row(one: Aggregate) -> list[Cell]:
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
