"""A model's loss against the budget in short words, for a cell of a table and for sentences of a report."""

from __future__ import annotations

from dataclasses import dataclass

from compress.measuring.results import Measurement
from compress.measuring.verdict import UNDECIDED, WITHIN, WORSE, judge_drop_of

__all__ = ["UNDECIDED", "WITHIN", "WORSE", "Judged", "judge"]


@dataclass(frozen=True)
class Judged:
    """``outcome`` is within, worse or undecided; ``more`` says how many more examples would decide, if it is open."""

    outcome: str
    more: str = ""

    @property
    def short(self) -> str:
        """The same for a cell: ``about 300 more``."""
        return self.more.partition(" examples")[0] if self.more.startswith("about") else self.more


def judge(line: Measurement, budget_points: float) -> Judged | None:
    """Judge the loss of a line against a budget in points; nothing where it has no metric to compare."""
    if line["difference_points"] is None:
        return None
    found = judge_drop_of(line, budget_points)
    more = found.sentence.removeprefix(f"{UNDECIDED}: ") if found.outcome == UNDECIDED else ""
    return Judged(found.outcome, more)
