"""Which rows of a report matter most: the best model, its control, the teacher it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from compress.measuring.results import Measurement, Row, is_baseline
from compress.reporting.judging import UNDECIDED, WITHIN, judge


def best_row(rows: Sequence[Row], budget_points: float = 1.0) -> Row | None:
    """Return the fastest model that is within the budget.

    Without any: the fastest whose loss is less than the budget though the data cannot show it; else the one that
    loses least. A model whose speed was too noisy to say comes after all others.
    """
    models = [row for row in rows if row.head["kind"] == "model" and row.head["metric"] is not None]
    models = [row for row in models if not row.head["noisy"]] or models
    for outcome in (WITHIN, UNDECIDED):
        good = [row for row in models if _holds(row.head, outcome, budget_points)]
        if good:
            return max(good, key=lambda row: float(row.head["speedup"]))
    return max(models, key=lambda row: float(row.head["metric"]), default=None)


def faster_row(best: Row | None, rows: Sequence[Row], budget_points: float = 1.0) -> Row | None:
    """Return the fastest model that may be within the budget too, where it is faster than one that surely is."""
    judged = judge(best.head, budget_points) if best else None
    if best is None or judged is None or judged.outcome != WITHIN:
        return None
    open_ones = [
        row
        for row in rows
        if row.head["kind"] == "model"
        and not row.head["noisy"]
        and row.head["speedup"] > best.head["speedup"]
        and _holds(row.head, UNDECIDED, budget_points)
    ]
    return max(open_ones, key=lambda row: float(row.head["speedup"]), default=None)


def leaders(rows: Sequence[Row], budget_points: float = 1.0) -> list[Row]:
    """Return the best model and, behind it, a faster one that needs more examples to be as sure of."""
    best = best_row(rows, budget_points)
    return [row for row in (best, faster_row(best, rows, budget_points)) if row is not None]


def baseline_of(rows: Sequence[Row]) -> Row | None:
    """Return the teacher in torch, where it is among the rows."""
    return next((row for row in rows if is_baseline(row.head)), None)


def control_pair(row: Row, rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """Return a student and its control, whose difference is what distillation is worth to a model; None without one.

    A control is named after its student, else shares its recipe. Of an int8 model it is the student before int8 that is
    compared, so that int8 is not in the difference; in the model's own runtime if both are there.
    """
    name, recipe = row.head["model"], row.head["recipe"]
    controls = [
        other
        for other in rows
        if other.head["kind"] == "control"
        and other.head["metric"] is not None
        and (other.head["control_of"] == name or other.head["recipe"] == recipe != "")
    ]
    controls.sort(key=lambda o: (o.head["control_of"] != name, o.head["runtime"] != row.head["runtime"]))
    if not controls:
        return None
    control = controls[0]
    alike = (control.head["control_of"], control.head["runtime"])
    student = next((other for other in rows if (other.head["model"], other.head["runtime"]) == alike), row)
    return student, control


def judged_floors(rows: Sequence[Row], budget_points: float, outcome: str) -> list[Row]:
    """Return the floors whose loss is judged so, the most accurate first."""
    floors = [row for row in rows if row.head["kind"] == "floor" and row.head["metric"] is not None]
    found = [row for row in floors if (told := judge(row.head, budget_points)) and told.outcome == outcome]
    return sorted(found, key=lambda row: -float(row.head["metric"]))


def _holds(line: Measurement, outcome: str, budget_points: float) -> bool:
    """Tell whether a line is judged so, and loses no more than the budget as far as its rows say."""
    judged = judge(line, budget_points)
    return judged is not None and judged.outcome == outcome and line["difference_points"] >= -budget_points
