"""A study at one of its budgets: the same parts, with what the budget replaces."""

from __future__ import annotations

from dataclasses import replace

from compress.errors import CompressError, did_you_mean
from compress.recipes import BenchmarkRecipe


def choose(study: BenchmarkRecipe, name: str = "") -> str:
    """Return the name of the budget that a study runs at: the one asked for, else its first; empty if it has none.

    Raises:
        CompressError: the study has no such budget.
    """
    if name and not study.budgets:
        raise CompressError(
            f"{study.name} has no budgets, so that --budget {name} would change nothing; leave it out, or add "
            f"[budgets.{name}] to the study"
        )
    if name and name not in study.budgets:
        there = ", ".join(study.budgets)
        raise CompressError(f"{study.name} has no budget {name!r}; it has {there}.{did_you_mean(name, study.budgets)}")
    return name or next(iter(study.budgets), "")


def within(study: BenchmarkRecipe, name: str) -> BenchmarkRecipe:
    """Return a study whose parts spend what one of its budgets allows; the study itself without a name.

    What the study plans for one student stands above the budget, and the budget above the student's recipe.
    """
    if not name:
        return study
    budget = study.budgets[name]
    sets = tuple(replace(part, rows=budget.rows or part.rows) for part in study.data.unlabeled)
    return replace(
        study,
        data=replace(study.data, unlabeled=sets),
        teacher=replace(study.teacher, training={**study.teacher.training, **budget.teacher}),
        students=tuple(replace(plan, training={**budget.training, **plan.training}) for plan in study.students),
        prune=tuple(replace(plan, training={**budget.training, **plan.training}) for plan in study.prune),
    )
