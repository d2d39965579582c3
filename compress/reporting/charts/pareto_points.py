"""Points of the Pareto chart: results and published figures."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import count, in_percent, megabytes, points, shown_metric, span, times
from compress.benchmarking.results.schema import Measurement
from compress.reporting.charts.pareto import MARKERS, Point
from compress.reporting.provenance import known_student
from compress.reporting.tables.cells import setting_text


@dataclass(frozen=True)
class PublishedPoint:
    """What authors reported of a method that is among the rows, and what we measure of it; all in percent.

    ``kept`` is of their own teacher, ``ours_kept`` of ours.
    """

    recipe: str
    dataset: str
    metric: str
    value: float
    teacher: float
    kept: float
    ours_kept: float
    source: str


def marks(lines: Sequence[Measurement], published: Sequence[PublishedPoint]) -> list[Point]:
    """Return a mark for every line, and for every published figure."""
    runtimes = Counter(line.model for line in lines)
    teacher = next((line for line in lines if line.kind == "teacher"), None)
    found = [_mark(line, alone=runtimes[line.model] == 1) for line in lines]
    if teacher is not None and teacher.metric is not None:
        scale = 100.0 if in_percent(teacher.metric_name) else 1.0
        found += [_published_mark(one, scale * teacher.metric) for one in published]
    return found


def published_figures(lines: Sequence[Measurement]) -> list[PublishedPoint]:
    """Return the published figures of the models' recipes for this data and metric; none of a recipe not known here.

    A figure for other data would say nothing beside ours. Its split may differ, and is told with it.
    """
    models = [line for line in lines if line.kind == "model" and line.recipe and line.metric_kept_percent is not None]
    by_recipe = grouped(models, attrgetter("recipe"))
    found = []
    for recipe, own in by_recipe.items():
        best, student = max(own, key=lambda line: line.metric or 0.0), known_student(recipe)
        found += [
            PublishedPoint(
                recipe,
                one.dataset,
                one.metric,
                one.value,
                one.teacher,
                100 * one.value / one.teacher,
                best.metric_kept_percent or 0.0,
                one.source,
            )
            for one in (student.published if student else ())
            if _names(best.data, one.dataset.rpartition(" ")[0] or one.dataset) and one.metric == best.metric_name
        ]
    return found


def _names(data: str, name: str) -> bool:
    """Tell whether the name of data holds another as a word: RTE is in ``glue/RTE dev``, not in ``forte``."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", data, re.IGNORECASE) is not None


def _mark(line: Measurement, *, alone: bool) -> Point:
    name = "teacher" if line.kind == "teacher" else line.model
    if line.padding == "max_length":
        name, alone = f"{name}, padded", True
    scale = 100.0 if in_percent(line.metric_name) else 1.0
    middle = None if line.metric is None else scale * line.metric
    low, high = (middle or 0.0 if end is None else scale * end for end in (line.metric_low, line.metric_high))
    if not alone and not line.is_reference:
        name = f"{name} ({line.runtime})"
    return Point(
        name=name,
        kind=line.kind,
        speedup=line.speedup,
        speedup_low=line.speedup_low,
        speedup_high=line.speedup_high,
        metric=middle,
        metric_low=low,
        metric_high=high,
        caption=_caption(line),
    )


def _caption(line: Measurement) -> str:
    speed = f"{times(line.speedup)} ({span(times(line.speedup_low), times(line.speedup_high))})"
    quality = "random weights, no metric"
    if line.difference_points is not None:
        quality = f"{line.metric_name} {shown_metric(line)}, {points(line.difference_points)} points"
    sizes = [f"{count(line.parameters)} parameters"] if line.parameters else []
    facts = ", ".join([speed, quality, *sizes, megabytes(line.size_bytes)])
    kind = "" if line.kind == "model" else f"; {line.kind}: {MARKERS[line.kind].meaning}"
    return f"{line.model} ({setting_text(line)}): {facts}{kind}"


def _published_mark(one: PublishedPoint, teacher: float) -> Point:
    caption = (
        f"{one.recipe}, published: {one.value:g} {one.metric} on {one.dataset}, {one.kept:.1f}% of its teacher’s "
        f"{one.teacher:g}; drawn at that share of our teacher, without a speed. {one.source}"
    )
    height = one.kept / 100 * teacher
    return Point(f"{one.recipe}, published", "published", None, 0.0, 0.0, height, height, height, caption)
