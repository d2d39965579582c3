"""Means and intervals of recipes over training seeds and data sets."""

from collections.abc import Sequence

from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.formatting import NONE, in_percent, points, span
from compress.benchmarking.results.schema import Measurement
from compress.reporting.tables.cells import Cell

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
    seeds: dict[tuple[str, str], set[int]] = {}
    for line in lines:
        if line.recipe and line.training_seed is not None:
            seeds.setdefault((line.recipe, line.kind), set()).add(line.training_seed)
    if len(data_sets) < 2 and all(len(known) < 2 for known in seeds.values()):
        return []
    return [_row(one) for one in aggregate(lines) if one.kind != "teacher" or one.data_sets > 1]


def _row(one: Aggregate) -> list[Cell]:
    scale, unit, digits = (100.0, "%", 2) if in_percent(one.metric_name) else (1.0, "", 4)
    spread = NONE if one.metric_spread is None else f"{scale * one.metric_spread:.{digits}f}"
    device = "" if one.device == "cpu" else one.device
    where = ", ".join(filter(None, ("" if one.kind == "model" else one.kind, one.stage, one.runtime, device)))
    return [
        Cell(one.name, where, one.name),
        Cell(str(one.seeds), "", one.seeds),
        Cell(str(one.data_sets), "", one.data_sets),
        Cell(f"{scale * one.metric:.{digits}f}{unit}", one.metric_name, scale * one.metric),
        Cell(spread, "", one.metric_spread),
        _difference(one.difference_points, one.low, one.high),
        _difference(one.gain_points, one.gain_low, one.gain_high),
        Cell("; ".join(one.notes) or NONE),
    ]


def _difference(value: float | None, low: float | None, high: float | None) -> Cell:
    if value is None:
        return Cell(NONE)
    interval = "" if low is None or high is None else span(points(low), points(high))
    return Cell(points(value), interval, value, low, high)
