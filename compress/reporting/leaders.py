"""Select the rows that a report describes first: best model, faster model, teacher, control, pruned models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compress.benchmarking.results.files import Result, is_control_of
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.results.verdict import UNDECIDED, WITHIN, WORSE, Verdict, judge_drop_of


def best_row(rows: Sequence[Result], budget_points: float = 1.0) -> Result | None:
    """Return the fastest model that is within the budget.

    Without any: the fastest whose loss is less than the budget though the data cannot show it; else the one that
    loses least, of those that may be within the budget if there are any.
    """
    models = [row for row in rows if row.small_batch.is_compressed and row.small_batch.difference is not None]
    for outcome in (WITHIN, UNDECIDED):
        good = [row for row in models if _holds(row.small_batch, outcome, budget_points)]
        if good:
            return max(good, key=lambda row: float(row.small_batch.speedup))
    return max(
        models,
        key=lambda row: (outcome_of(row.small_batch, budget_points) != WORSE, row.small_batch.metric or 0.0),
        default=None,
    )


def faster_row(best: Result | None, rows: Sequence[Result], budget_points: float = 1.0) -> Result | None:
    """Return the fastest model that may be within the budget too, where it is surely faster than one that surely is."""
    if best is None or outcome_of(best.small_batch, budget_points) != WITHIN:
        return None
    open_ones = [
        row
        for row in rows
        if row.small_batch.is_compressed
        and row.small_batch.speedup_low > best.small_batch.speedup_high
        and _holds(row.small_batch, UNDECIDED, budget_points)
    ]
    return max(open_ones, key=lambda row: float(row.small_batch.speedup), default=None)


@dataclass(frozen=True)
class Leaders:
    """The rows of a section that a reader wants to know first, found once when results are gathered.

    ``best`` is the fastest model within the budget (:func:`best_row`), ``faster`` one that may be within it too,
    ``teacher`` the one in torch that ``best`` was compared with, ``control`` a student and its control, whose
    difference is what distillation is worth to ``best``.
    """

    budget_points: float
    teacher: Result | None
    best: Result | None
    faster: Result | None
    control: tuple[Result, Result] | None

    @classmethod
    def of(cls, rows: Sequence[Result], budget_points: float = 1.0) -> Leaders:
        best = best_row(rows, budget_points)
        faster = faster_row(best, rows, budget_points)
        return cls(budget_points, teacher_row(rows, best), best, faster, control_pair(best, rows) if best else None)

    @property
    def models(self) -> list[Result]:
        """The best model and, behind it, a faster one that needs more examples to be as sure of."""
        return [row for row in (self.best, self.faster) if row is not None]


def taken_apart(rows: Sequence[Result], lines: Sequence[Measurement]) -> list[list[Result]]:
    """Return of every pruned model whose removals were measured one by one what there is of it, the fastest first.

    That is itself and its int8, in every runtime, by the largest batch size, where times are longest and known best.
    """
    pruned = dict.fromkeys(line.parents[0] for line in lines if line.kind == "pruning-step")
    made = [
        [row for row in rows if sha in (row.small_batch.model_sha256, *row.small_batch.parents[:1])] for sha in pruned
    ]
    return [sorted(own, key=lambda row: -float(row.large_batch.speedup)) for own in made if own]


def teacher_row(rows: Sequence[Result], of: Result | None = None) -> Result | None:
    """Return the teacher in torch, where it is among the rows; of several that of the same run as ``of``."""
    found = [row for row in rows if row.small_batch.is_reference]
    return next(
        (row for row in found if of and row.small_batch.created == of.small_batch.created), found[0] if found else None
    )


def control_pair(row: Result, rows: Sequence[Result]) -> tuple[Result, Result] | None:
    """Return a student and its control, whose difference is what distillation is worth to a model; None without one.

    A model names its control; in older results a control is named after its student, else shares its recipe. Of an
    int8 model it is the student before int8 that is compared, so that int8 is not in the difference; in the model's own
    runtime if both are there.
    """
    name = row.small_batch.model
    controls = [
        other
        for other in rows
        if other.small_batch.metric is not None and is_control_of(other.small_batch, [row.small_batch])
    ]
    runtime = row.small_batch.runtime
    control = min(
        controls,
        key=lambda other: (other.small_batch.control_of != name, other.small_batch.runtime != runtime),
        default=None,
    )
    if control is None:
        return None
    before = _before_int8(row.small_batch, control.small_batch, rows)
    students = [other for other in rows if other.small_batch.model in before and other.small_batch.metric is not None]
    if not students and row.small_batch.stage == "quantize":
        return None  # the student before int8 was not measured, and int8 would be in the difference
    runtime = control.small_batch.runtime
    return min(students or [row], key=lambda other: other.small_batch.runtime != runtime), control


def _before_int8(line: Measurement, control: Measurement, rows: Sequence[Result]) -> set[str]:
    """Return the names of the student that a control of a line is compared with."""
    if not line.control:
        return {control.control_of}
    if line.stage != "quantize":
        return {line.model}
    return {
        other.small_batch.model
        for other in rows
        if other.small_batch.kind == "model" and other.small_batch.model_sha256 in line.parents
    }


def judged_baselines(rows: Sequence[Result], budget_points: float, outcome: str) -> list[Result]:
    """Return the baselines whose loss is judged so, the most accurate first."""
    baselines = [row for row in rows if row.small_batch.kind == "baseline" and row.small_batch.metric is not None]
    found = [row for row in baselines if outcome_of(row.small_batch, budget_points) == outcome]
    return sorted(found, key=lambda row: -(row.small_batch.metric or 0.0))


def _holds(line: Measurement, outcome: str, budget_points: float) -> bool:
    """Tell whether a line has this outcome, and its loss is no larger than the budget as far as its rows say."""
    return outcome_of(line, budget_points) == outcome and (line.difference_points or 0.0) >= -budget_points


def outcome_of(line: Measurement, budget_points: float) -> str:
    """Return whether a line is ``within`` a budget, ``worse`` or ``undecided``; empty where it has no metric."""
    judged = judge(line, budget_points)
    return judged.outcome if judged else ""


def judge(line: Measurement, budget_points: float) -> Verdict | None:
    """Judge the loss of a line against a budget in points; None where it has no metric to compare."""
    return None if line.difference is None else judge_drop_of(line, budget_points)
