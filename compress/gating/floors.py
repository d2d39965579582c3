"""Floors within a budget: where gold labels alone are enough, a student proves nothing."""

from __future__ import annotations

from collections.abc import Sequence

from compress.gating.budgets import Budget
from compress.gating.limits import figures_of
from compress.gating.wording import interval, lost
from compress.measuring import verdict
from compress.measuring.results import Measurement, rows_of
from compress.reporting.units import in_points


def floors_within(lines: Sequence[Measurement], budgets: Sequence[Budget]) -> list[str]:
    """Say which floors are, or may be, within the loosest budget of a loss."""
    drops = [budget.max_accuracy_drop for budget in budgets if budget.max_accuracy_drop is not None]
    floors = [row.head for row in rows_of(lines) if row.head["kind"] == "floor"]
    notes = [_note(floor, max(drops)) for floor in floors if drops]
    return list(dict.fromkeys(note for note in notes if note))


def _note(floor: Measurement, budget: float) -> str:
    difference = figures_of(floor, "difference_points", "difference")
    if difference is None:
        return ""
    found = verdict.judge_drop_of(floor, budget)
    if found.outcome == verdict.WORSE or difference[0] < -budget:
        return ""
    return (
        f"A floor {'is' if found.outcome == verdict.WITHIN else 'may be'} within the budget of {in_points(budget)} of "
        f"{floor['metric_name']}, fitted on gold labels only: {floor['model']}, {lost(-difference[0])} on "
        f"{floor['metric_rows']:,} examples ({interval(lost, -difference[2], -difference[1])})."
    )
