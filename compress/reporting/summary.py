"""The first sentences of a report, and the lines that they describe: best model, faster one, teacher, control.

A line stands for its row of the table: it is that of the smallest batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from compress.benchmarking.results.files import is_control_of
from compress.benchmarking.results.formatting import (
    WIDE_NOTE,
    in_points,
    is_wide,
    megabytes,
    plural,
    points,
    shown_metric,
    span,
    speed_span,
    times,
    with_span,
)
from compress.benchmarking.results.schema import REFERENCE_RUNTIME, Measurement
from compress.benchmarking.results.verdict import UNDECIDED, WITHIN, WORSE, Verdict, judge_drop_of
from compress.evaluation.metrics import paired_difference
from compress.tasks import metrics_by_name

Pair = tuple[Measurement, Measurement]


@dataclass(frozen=True)
class Leaders:
    """The lines of a section that a reader wants to know first, found once when results are gathered.

    ``best`` is the fastest model within the budget (:func:`best_line`), ``faster`` one that may be within it too,
    ``teacher`` the one in torch that ``best`` was compared with, ``control`` a student and its control, whose
    difference is what distillation is worth to ``best``.
    """

    budget_points: float
    teacher: Measurement | None
    best: Measurement | None
    faster: Measurement | None
    control: Pair | None

    @classmethod
    def of(cls, lines: Sequence[Measurement], budget_points: float = 1.0) -> Leaders:
        best = best_line(lines, budget_points)
        faster = faster_line(best, lines, budget_points)
        return cls(budget_points, teacher_line(lines, best), best, faster, control_pair(best, lines) if best else None)

    @property
    def models(self) -> list[Measurement]:
        """The best model and, behind it, a faster one that needs more examples to be as sure of."""
        return [line for line in (self.best, self.faster) if line is not None]


def outcome_of(line: Measurement, budget_points: float) -> str:
    """Return whether a line is ``within`` a budget, ``worse`` or ``undecided``; empty where it has no metric."""
    judged = judge_drop_of(line, budget_points)
    return judged.outcome if judged else ""


def _fastest(lines: Sequence[Measurement], outcome: str, budget_points: float) -> Measurement | None:
    """Return the fastest of an outcome whose loss is no larger than the budget as far as its rows say."""
    good = [line for line in lines if outcome_of(line, budget_points) == outcome]
    good = [line for line in good if (line.difference_points or 0.0) >= -budget_points]
    return max(good, key=attrgetter("speedup"), default=None)


def best_line(lines: Sequence[Measurement], budget_points: float = 1.0) -> Measurement | None:
    """Return the fastest model that is within the budget.

    Without any: the fastest whose loss is less than the budget though the data cannot show it; else the one that
    loses least, of those that may be within the budget if there are any.
    """
    models = [line for line in lines if line.is_compressed and line.difference is not None]
    return (
        _fastest(models, WITHIN, budget_points)
        or _fastest(models, UNDECIDED, budget_points)
        or max(models, key=lambda line: (outcome_of(line, budget_points) != WORSE, line.metric or 0.0), default=None)
    )


def faster_line(
    best: Measurement | None, lines: Sequence[Measurement], budget_points: float = 1.0
) -> Measurement | None:
    """Return the fastest model that may be within the budget too, where it is surely faster than one that surely is."""
    if best is None or outcome_of(best, budget_points) != WITHIN:
        return None
    faster = [line for line in lines if line.is_compressed and line.speedups.low > best.speedups.high]
    return _fastest(faster, UNDECIDED, budget_points)


def teacher_line(lines: Sequence[Measurement], of: Measurement | None = None) -> Measurement | None:
    """Return the teacher in torch, where it is among the lines; of several that of the same run as ``of``."""
    found = [line for line in lines if line.is_reference]
    return next((line for line in found if of and line.created == of.created), found[0] if found else None)


def control_pair(line: Measurement, lines: Sequence[Measurement]) -> Pair | None:
    """Return a student and its control, whose difference is what distillation is worth to a model; None without one.

    A model names its control; in older results a control is named after its student, else shares its recipe. Of an
    int8 model it is the student before int8 that is compared, so that int8 is not in the difference; in the model's own
    runtime if both are there.
    """
    scored = [other for other in lines if other.metric is not None]
    control = min(
        (other for other in scored if is_control_of(other, [line])),
        key=lambda other: (other.control_of != line.model, other.runtime != line.runtime),
        default=None,
    )
    if control is None:
        return None
    names = {line.model if line.control else control.control_of}
    if line.control and line.stage == "quantize":
        names = {other.model for other in lines if other.kind == "model" and other.model_sha256 in line.parents}
    students = [other for other in scored if other.kind == "model" and other.model in names]
    if not students and line.stage == "quantize":
        return None  # the student before int8 was not measured, and int8 would be in the difference
    return min(students or [line], key=lambda other: other.runtime != control.runtime), control


def verdict(lines: Sequence[Measurement], leaders: Leaders) -> list[str]:
    """Return the sentences a reader needs if they read nothing else; the first one is the result.

    ``lines`` are those of the table's rows at the smallest batch size.

    A baseline that is within the budget comes before every model: whoever reads no further should know of it.
    """
    best, faster, teacher, budget = leaders.best, leaders.faster, leaders.teacher, leaders.budget_points
    if teacher is None:
        return ["The teacher in torch was not measured here, so there is nothing to judge the models by."]
    by_metric = sorted(lines, key=lambda line: -(line.metric or 0.0))
    baselines = [line for line in by_metric if line.kind == "baseline" and line.difference is not None]
    good = [line for line in baselines if outcome_of(line, budget) == WITHIN]
    sentences = [
        f"{line.model} alone is within {in_points(budget)} of the teacher: {shown_metric(line)} against "
        f"{shown_metric(teacher)}, {_interval(line)}."
        for line in good
    ]
    judged = judge_drop_of(best, budget) if best else None
    if best is None or judged is None:
        return [*sentences, "No compressed model was measured here, so there is none to judge."]
    sentences += [_best_sentence(best, teacher, judged, budget), _accuracy_sentence(best, teacher, judged)]
    sentences += _control_sentence(leaders.control, teacher)
    if faster and (open_one := judge_drop_of(faster, budget)):
        sentences.append(
            f"{faster.title} is faster still, {with_span(faster.speedups, times)}, at {_interval(faster)}: whether "
            f"that is within {in_points(budget)} is undecided; {open_one.more}."
        )
        sentences += _control_sentence(control_pair(faster, lines), teacher)
    if baselines and not good:
        sentences.append(_other_baselines(baselines, budget))
    sentences += _faster_competitor(best, lines, budget)
    compared = [line for line in lines if not line.is_reference]
    if wide := [line for line in compared if is_wide(line.speedups)]:
        sentences.append(f"Known roughly only: {plural(len(wide), 'speed-up')} of {len(compared)}. {WIDE_NOTE}")
    return list(dict.fromkeys(sentences))  # an int8 model and its source have the same control


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
    value, low, high = map(points, line.difference)
    rows, unit = line.counted
    examples = f" in {line.data_rows:,} examples" if unit == "words" else ""
    # How much of the speed is left over the teacher in the model's own runtime, where that is another one.
    same = line.interval("speedup_same_runtime") if line.runtime != REFERENCE_RUNTIME else None
    beside = f" Its speed is {with_span(same, times)} that of the teacher in {line.runtime}." if same else ""
    return (
        f"Its {line.metric_name} is {shown_metric(line)} against {shown_metric(teacher)} on {rows:,} {unit}{examples}: "
        f"{value} points, and the data allow {span(low, high)} (95% paired interval)"
        f"{f'; {judged.more}' if judged.more else ''}.{beside}"
    )


def _control_sentence(pair: Pair | None, teacher: Measurement) -> list[str]:
    """Say what distillation is worth, with the paired 95% interval of a student against its control."""
    if pair is None:
        return []
    student, control = pair
    sentence = (
        f"{student.model} trained on gold labels only reaches {shown_metric(control)} instead of "
        f"{shown_metric(student)}: distillation is worth {points(student.points_above(control))} points"
    )
    columns = (student.predictions, control.predictions, teacher.gold)
    if not all(columns) or not student.labels == control.labels == teacher.labels:  # predictions are their numbers
        return [f"{sentence}; without predictions in the results there is no interval to say how sure that is."]
    metric, classes = metrics_by_name()[student.metric_name or ""], len(student.labels)
    found = paired_difference(*map(np.asarray, columns), metric=metric, classes=classes)
    doubt = ", so these rows do not show that it helped" if found.low <= 0 <= found.high else ""
    return [f"{sentence} ({span(points(found.low), points(found.high))}){doubt}."]


def _other_baselines(baselines: Sequence[Measurement], budget_points: float) -> str:
    """Say of the best baseline that is not within the budget how far it is."""
    undecided = [line for line in baselines if outcome_of(line, budget_points) == UNDECIDED]
    best = (undecided or baselines)[0]
    judged = judge_drop_of(best, budget_points)
    if undecided and judged:
        return f"{best.model} alone may be enough, at {_interval(best)}: undecided; {judged.more}."
    return f"No baseline is within {in_points(budget_points)}: the best, {best.model}, is at {_interval(best)}."


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


def _interval(line: Measurement) -> str:
    assert line.difference is not None  # it was judged by it
    return "{} points ({} to {})".format(*map(points, line.difference))
