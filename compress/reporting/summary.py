"""Summarise results: the first sentences of a report, and the table on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from compress.benchmarking.results.files import largest_batch, results_of, smallest_batch
from compress.benchmarking.results.formatting import (
    NONE,
    WIDE_NOTE,
    count,
    in_points,
    is_wide,
    kind_text,
    megabytes,
    metric_title,
    milliseconds,
    plural,
    points,
    shown_metric,
    shown_rate,
    span,
    speed_span,
    times,
    with_span,
)
from compress.benchmarking.results.schema import REFERENCE_RUNTIME, Measurement
from compress.benchmarking.results.verdict import UNDECIDED, WITHIN, Verdict, judge_drop_of
from compress.escaping.terminal import terminal_cell
from compress.evaluation.metrics import METRICS, paired_difference
from compress.inference.speedup_intervals import Interval
from compress.reporting.leaders import Leaders, control_pair, judged_baselines, outcome_of, teacher_line

if TYPE_CHECKING:
    from rich.table import Table


def verdict(lines: Sequence[Measurement], leaders: Leaders) -> list[str]:
    """Return the sentences a reader needs if they read nothing else; the first one is the result.

    ``lines`` are those of the table's rows at the smallest batch size.

    A baseline that is within the budget comes before every model: whoever reads no further should know of it.
    """
    best, faster, teacher, budget_points = leaders.best, leaders.faster, leaders.teacher, leaders.budget_points
    if teacher is None:
        return ["The teacher in torch was not measured here, so there is nothing to judge the models by."]
    baselines = [
        _baseline_sentence(line, teacher, budget_points) for line in judged_baselines(lines, budget_points, WITHIN)
    ]
    if best is None:
        return [*baselines, "No compressed model was measured here, so there is none to judge."]
    judged = judge_drop_of(best, budget_points)
    assert judged is not None  # the best line has a metric
    sentences = [
        *baselines,
        _best_sentence(best, teacher, judged, budget_points),
        _accuracy_sentence(best, teacher, judged),
        *_control_sentence(leaders.control, teacher),
        *([_faster_sentence(faster, budget_points)] if faster else []),
        *(_control_sentence(control_pair(faster, lines), teacher) if faster else []),
        *([] if baselines else _other_baselines(lines, budget_points)),
        *_faster_competitor(best, lines, budget_points),
        *_wide_sentence(lines),
    ]
    return list(dict.fromkeys(sentences))  # an int8 model and its source have the same control


def _baseline_sentence(line: Measurement, teacher: Measurement, budget_points: float) -> str:
    return (
        f"{line.model} alone is within {in_points(budget_points)} of the teacher: {shown_metric(line)} against "
        f"{shown_metric(teacher)}, {_interval(line)}."
    )


def _best_sentence(line: Measurement, teacher: Measurement, judged: Verdict, budget_points: float) -> str:
    budget, kept = in_points(budget_points), line.metric_kept_percent
    size, full = megabytes(line.size_bytes), megabytes(teacher.size_bytes)
    said = (
        (f"has {shown_metric(line)}" if kept is None else f"keeps {kept:.1f}% of the teacher’s {line.metric_name}")
        + f" at {times(line.speedup)} its speed ({speed_span(line.speedups, times)})"
        + (f", in {size} instead of {full}" if size != full else "")
    )
    if judged.outcome == WITHIN:
        return f"{line.title} {said}: within {budget} of the teacher."
    if judged.outcome == UNDECIDED:
        return f"{line.title} {said}: whether that is within {budget} is undecided."
    return f"No model is within {budget} of the teacher. The closest, {line.title}, {said}."


def _accuracy_sentence(line: Measurement, teacher: Measurement, judged: Verdict) -> str:
    assert line.difference is not None  # it was judged by it
    value, low, high = line.difference
    # How much of the speed is left over the teacher in the model's own runtime, where that is another one.
    same = line.interval("speedup_same_runtime") if line.runtime != REFERENCE_RUNTIME else None
    beside = f" Its speed is {with_span(same, times)} that of the teacher in {line.runtime}." if same else ""
    return (
        f"Its {line.metric_name} is {shown_metric(line)} against {shown_metric(teacher)} on "
        f"{_counted(line)}: {points(value)} points, and the data allow "
        f"{span(points(low), points(high))} (95% paired interval)"
        f"{f'; {judged.more}' if judged.more else ''}.{beside}"
    )


def _counted(line: Measurement) -> str:
    count, unit = line.counted
    return f"{count:,} {unit}" + (f" in {line.data_rows:,} examples" if unit == "words" else "")


def _faster_sentence(line: Measurement, budget_points: float) -> str:
    judged = judge_drop_of(line, budget_points)
    assert judged is not None  # it was chosen by its verdict
    return (
        f"{line.title} is faster still, {with_span(line.speedups, times)}, at {_interval(line)}: whether that is "
        f"within {in_points(budget_points)} is undecided; {judged.more}."
    )


def _control_sentence(pair: tuple[Measurement, Measurement] | None, teacher: Measurement) -> list[str]:
    if pair is None:
        return []
    student, control = pair
    sentence = (
        f"{student.model} trained on gold labels only reaches {shown_metric(control)} instead of "
        f"{shown_metric(student)}: distillation is worth {points(student.points_above(control))} points"
    )
    bounds = gain_interval(student, control, teacher)
    if bounds is None:
        return [f"{sentence}; without predictions in the results there is no interval to say how sure that is."]
    doubt = ", so these rows do not show that it helped" if bounds[0] <= 0 <= bounds[1] else ""
    return [f"{sentence} ({span(points(bounds[0]), points(bounds[1]))}){doubt}."]


def _other_baselines(lines: Sequence[Measurement], budget_points: float) -> list[str]:
    """Say of the best baseline that is not within the budget how far it is."""
    baselines = [line for line in lines if line.kind == "baseline" and line.difference is not None]
    undecided = judged_baselines(lines, budget_points, UNDECIDED)
    best = next(iter(undecided), max(baselines, key=lambda line: line.metric or 0.0, default=None))
    if best is None:
        return []
    name, loss, judged = best.model, _interval(best), judge_drop_of(best, budget_points)
    if undecided and judged is not None:
        return [f"{name} alone may be enough, at {loss}: undecided; {judged.more}."]
    return [f"No baseline is within {in_points(budget_points)}: the best, {name}, is at {loss}."]


def _faster_competitor(best: Measurement, lines: Sequence[Measurement], budget_points: float) -> list[str]:
    """Name a competitor that is surely faster than the best model and not surely worse than the budget.

    Where tokenisation cannot be told from the competitor's time it is counted on both sides.
    """
    faster = [line for line in lines if line.kind == "competitor" and is_surely_faster(line, best)]
    open_ones = [line for line in faster if outcome_of(line, budget_points) in (WITHIN, UNDECIDED)]
    line = max(open_ones, key=lambda line: float(line.speedup), default=None)
    if line is None:
        return []
    found = f"within {in_points(budget_points)}"
    if outcome_of(line, budget_points) == UNDECIDED:
        found = f"whether that is {found} is undecided"
    inside = ", tokenisation included" if line.tokenizer_inside else ""
    speed = f"{line.title} at {with_span(line.speedups, times)}{inside}"
    return [f"A competitor is faster: {speed}, at {_interval(line)}: {found}."]


def is_surely_faster(competitor: Measurement, best: Measurement) -> bool:
    """Tell whether intervals say so: with tokenisation on both sides where it is inside the competitor's time."""
    key = "speedup_with_tokenizer" if competitor.tokenizer_inside else "speedup"
    return bool(getattr(competitor, f"{key}_low") > getattr(best, f"{key}_high"))


def _wide_sentence(lines: Sequence[Measurement]) -> list[str]:
    """Say which speed-ups are known roughly only, and what would narrow them."""
    compared = [line for line in lines if not line.is_reference]
    wide = [line for line in compared if is_wide(line.speedups)]
    return [f"Known roughly only: {plural(len(wide), 'speed-up')} of {len(compared)}. {WIDE_NOTE}"] if wide else []


def _interval(line: Measurement) -> str:
    assert line.difference is not None  # it was judged by it
    return "{} points ({} to {})".format(*map(points, line.difference))


def gain_interval(model: Measurement, control: Measurement, teacher: Measurement) -> tuple[float, float] | None:
    """Return the paired 95% interval of a model against its control, where the lines keep their predictions."""
    columns = (model.predictions, control.predictions, teacher.gold)
    if not all(columns) or not model.labels == control.labels == teacher.labels:  # predictions are their numbers
        return None
    predicted, reference, gold = (np.asarray(column) for column in columns)
    metric, classes = METRICS[model.metric_name or ""], len(model.labels)
    found = paired_difference(predicted, reference, gold, metric=metric, classes=classes)
    return found.low, found.high


def results_table(lines: Sequence[Measurement]) -> Table:
    """Return results as a table for the terminal: one row a configuration, intervals in brackets."""
    from rich.table import Table

    rows = results_of(lines)
    small_batches = [row.small_batch for row in rows]
    first = teacher_line(small_batches) or small_batches[0]
    smallest, largest = smallest_batch(rows), largest_batch(rows)
    settings = [
        key for key in ("threads", "length", "padding") if len({getattr(line, key) for line in small_batches}) > 1
    ]
    title = f"{first.metric_name} on {first.data}, {first.data_rows:,} rows"
    table = Table(title=terminal_cell(title, "table.title"))
    table.add_column("model", overflow="fold")
    table.add_column("runtime", overflow="fold")
    for name in (
        *settings,
        metric_title(first.metric_name),
        "points to teacher",
        f"speed-up, batch {smallest}",
        f"p50 ms, batch {smallest}",
        f"rows/s, batch {largest}",
        "parameters",
        "disk",
        "memory",
        "noise",
    ):
        table.add_column(terminal_cell(name), justify="right")
    for row in rows:
        line, base = row.small_batch, row.small_batch.is_reference
        at_smallest, at_largest = row.at(smallest), row.at(largest)
        cells = [
            line.model + (f" ({kind})" if (kind := kind_text(line)) else ""),
            line.runtime,
            *(str(getattr(line, key) if getattr(line, key) is not None else "own") for key in settings),
            shown_metric(line).removesuffix("%"),
            "" if base else _bracketed(points, line.difference),
            "×1" if base else _speed(times, at_smallest, "speedup"),
            _speed(_milliseconds, at_smallest, "latency_p50_ms"),
            _speed(shown_rate, at_largest, "throughput_rows_per_second"),
            count(line.parameters),
            megabytes(line.size_bytes),
            megabytes(line.model_memory_bytes),
            f"{line.noise:.1%}",
        ]
        style = "dim" if line.kind in {"control", "baseline", "reference-model"} else None
        table.add_row(*map(terminal_cell, cells), style=style)
    return table


def _milliseconds(value: float) -> str:
    return milliseconds(value).removesuffix(" ms")


def _bracketed(form: Callable[[float], str], figure: Interval | None) -> str:
    return NONE if figure is None else "{} [{}, {}]".format(*map(form, figure))


def _speed(form: Callable[[float], str], line: Measurement | None, key: str) -> str:
    figure = line.interval(key) if line else None
    return _bracketed(form, figure) + (" wide" if figure and is_wide(figure) else "")
