"""Select the lines that a report describes first: best model, faster model, teacher, control, pruned models.

A line stands for its row of the table: it is that of the smallest batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from compress.benchmarking.results.files import Result, is_control_of
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.results.verdict import UNDECIDED, WITHIN, WORSE, judge_drop_of


def best_line(lines: Sequence[Measurement], budget_points: float = 1.0) -> Measurement | None:
    """Return the fastest model that is within the budget.

    Without any: the fastest whose loss is less than the budget though the data cannot show it; else the one that
    loses least, of those that may be within the budget if there are any.
    """
    models = [line for line in lines if line.is_compressed and line.difference is not None]
    for outcome in (WITHIN, UNDECIDED):
        good = [line for line in models if _holds(line, outcome, budget_points)]
        if good:
            return max(good, key=attrgetter("speedup"))
    return max(models, key=lambda line: (outcome_of(line, budget_points) != WORSE, line.metric or 0.0), default=None)


def faster_line(
    best: Measurement | None, lines: Sequence[Measurement], budget_points: float = 1.0
) -> Measurement | None:
    """Return the fastest model that may be within the budget too, where it is surely faster than one that surely is."""
    if best is None or outcome_of(best, budget_points) != WITHIN:
        return None
    faster = [line for line in lines if line.is_compressed and line.speedup_low > best.speedup_high]
    open_ones = [line for line in faster if _holds(line, UNDECIDED, budget_points)]
    return max(open_ones, key=attrgetter("speedup"), default=None)


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
    control: tuple[Measurement, Measurement] | None

    @classmethod
    def of(cls, lines: Sequence[Measurement], budget_points: float = 1.0) -> Leaders:
        best = best_line(lines, budget_points)
        faster = faster_line(best, lines, budget_points)
        return cls(budget_points, teacher_line(lines, best), best, faster, control_pair(best, lines) if best else None)

    @property
    def models(self) -> list[Measurement]:
        """The best model and, behind it, a faster one that needs more examples to be as sure of."""
        return [line for line in (self.best, self.faster) if line is not None]


def taken_apart(rows: Sequence[Result], lines: Sequence[Measurement]) -> list[list[Result]]:
    """Return of every pruned model whose removals were measured one by one what there is of it, the fastest first.

    That is itself and its int8, in every runtime, by the largest batch size, where times are longest and known best.
    """
    pruned = dict.fromkeys(line.parents[0] for line in lines if line.kind == "pruning-step")
    models = [row for row in rows if row.small_batch.kind == "model"]
    made = [
        [row for row in models if sha in (row.small_batch.model_sha256, *row.small_batch.parents[:1])] for sha in pruned
    ]
    return [sorted(own, key=lambda row: -float(row.large_batch.speedup)) for own in made if own]


def teacher_line(lines: Sequence[Measurement], of: Measurement | None = None) -> Measurement | None:
    """Return the teacher in torch, where it is among the lines; of several that of the same run as ``of``."""
    found = [line for line in lines if line.is_reference]
    return next((line for line in found if of and line.created == of.created), found[0] if found else None)


def control_pair(line: Measurement, lines: Sequence[Measurement]) -> tuple[Measurement, Measurement] | None:
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
    before = _before_int8(line, control, lines)
    students = [other for other in scored if other.kind == "model" and other.model in before]
    if not students and line.stage == "quantize":
        return None  # the student before int8 was not measured, and int8 would be in the difference
    return min(students or [line], key=lambda other: other.runtime != control.runtime), control


def _before_int8(line: Measurement, control: Measurement, lines: Sequence[Measurement]) -> set[str]:
    """Return the names of the student that a control of a line is compared with."""
    if not line.control:
        return {control.control_of}
    if line.stage != "quantize":
        return {line.model}
    return {other.model for other in lines if other.kind == "model" and other.model_sha256 in line.parents}


def judged_baselines(lines: Sequence[Measurement], budget_points: float, outcome: str) -> list[Measurement]:
    """Return the baselines whose loss is judged so, the most accurate first."""
    baselines = [line for line in lines if line.kind == "baseline" and line.metric is not None]
    found = [line for line in baselines if outcome_of(line, budget_points) == outcome]
    return sorted(found, key=lambda line: -(line.metric or 0.0))


def _holds(line: Measurement, outcome: str, budget_points: float) -> bool:
    """Tell whether a line has this outcome, and its loss is no larger than the budget as far as its rows say."""
    return outcome_of(line, budget_points) == outcome and (line.difference_points or 0.0) >= -budget_points


def outcome_of(line: Measurement, budget_points: float) -> str:
    """Return whether a line is ``within`` a budget, ``worse`` or ``undecided``; empty where it has no metric."""
    judged = judge_drop_of(line, budget_points)
    return judged.outcome if judged else ""
