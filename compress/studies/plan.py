"""Plan a study: apply a budget, resolve the student recipes, and name all models."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compress import recipes
from compress.errors import CompressError, did_you_mean, refuse
from compress.recipes import (
    StudentRecipe,
    StudyPrune,
    StudyRecipe,
    StudyStudent,
    control_key,
    in_phases,
    replace_training,
    resolved,
)
from compress.requests.training import Run


@dataclass(frozen=True)
class PlannedStudent:
    """A student of a study: what the study says of it, the recipe as it is to be trained here, and its seeds."""

    plan: StudyStudent
    recipe: StudentRecipe
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def trainings(self) -> list[tuple[str, int]]:
        """The name and seed of every training."""
        return [(f"{self.name}-seed-{seed}" if number else self.name, seed) for number, seed in enumerate(self.seeds)]

    def control_key(self, seed: int) -> str:
        """Return what controls that are one training have in common."""
        return control_key(resolved(self.recipe), seed)


def planned_students(recipe: StudyRecipe) -> list[PlannedStudent]:
    """Return every student of a study as it is to be trained here.

    Raises:
        CompressError: a fault of any recipe, or two models of one name.
    """
    students: list[PlannedStudent] = []
    for plan in recipe.students:
        student = recipes.load_recipe("students", plan.recipe)
        training = replace_training(student.training, plan.training, source=f"{recipe.name}: student {plan.recipe}")
        if plan.phases:
            student = in_phases(student, plan.phases, source=f"{recipe.name}: student {plan.name}")
        try:
            named = replace(plan, name=plan.name or student.name)
        except CompressError as error:
            raise CompressError(f"{recipe.name}: student {plan.recipe}: {error}") from None
        student = replace(student, name=named.name, training=training)
        students.append(PlannedStudent(plan, student, plan.seeds or (recipe.seed,)))
    names = [*(student.name for student in students), *map(pruned_name, recipe.prune)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise CompressError(f"{recipe.name} names two models {twice[0]!r}; give the other a name")
    return students


def control_names(students: Sequence[PlannedStudent]) -> dict[str, str]:
    """Return what each control is called by its key: after the first of the study's students that it belongs to."""
    names: dict[str, str] = {}
    for student in students:
        for name, seed in student.trainings if student.plan.control else ():
            names.setdefault(student.control_key(seed), f"{name}-control")
    return names


def pruned_name(plan: StudyPrune) -> str:
    """Return what the teacher without some of its structure is called."""
    return plan.name or f"pruned-{plan.heads.replace('%', '').strip()}"


def announcement(recipe: StudyRecipe, students: Sequence[PlannedStudent], request: Run) -> str:
    """Return what a study will make, in order, and how long that takes where the study says it."""
    only = request.only
    controls = control_names(students)
    models = [] if request.teacher else [f"teacher ({recipe.teacher.recipe or recipe.teacher.model})"]
    models += ["its int8"] if recipe.teacher.quantize else []
    for student in students:
        if only and student.name not in only:
            continue
        for name, seed in student.trainings:
            control = controls[student.control_key(seed)] if student.plan.control else ""
            models += [made for made in (name, control) if made and made not in models]
        models += [f"{student.name} quantized"] if student.plan.quantize else []
    for pruning in recipe.prune:
        name = pruned_name(pruning)
        if not only or name in only:
            models += [name, f"{name}'s int8"] if pruning.quantize else [name]
    corpus = f"the corpus {recipe.data.corpus}; " if recipe.data.corpus else ""
    duration = f" It takes {recipe.duration}." if recipe.duration else ""
    measured = "They, and what was made here before, are" if only else "All of them are"
    return (
        f"{recipe.title}\nTo be made: {corpus}{', '.join(models)}. {measured} then measured against the teacher"
        f"{f' {request.teacher}' if request.teacher else ''}, and a report is written.{duration}"
    )


def command(request: Run, study: StudyRecipe, made: Collection[str]) -> str:
    """Return the command that makes these students and pruned models, without directories."""
    named = request.study if isinstance(request.study, str) else study.name
    words = [f"compress run {Path(named).name}"]
    words += [f"--budget {request.budget}"] if request.budget else []
    words += [f"--teacher {Path(str(request.teacher)).name}"] if request.teacher else []
    everything = len(made) == len(study.students) + len(study.prune)
    return " ".join([*words, *(f"--only {name}" for name in made if not everything)])


def check_only(only: Sequence[str], recipe: StudyRecipe, students: Sequence[PlannedStudent]) -> None:
    """Raise a :class:`CompressError` for a name that the study will not make."""
    there = [*(student.name for student in students), *map(pruned_name, recipe.prune)]
    for name in only:
        refuse(
            (
                name not in there,
                f"--only {name} is not in {recipe.name}; it has {', '.join(there)}.{did_you_mean(name, there)}",
            )
        )


def choose_budget(study: StudyRecipe, name: str = "") -> str:
    """Return the name of the budget that a study runs at: the one asked for, else its first; empty if it has none.

    Raises:
        CompressError: the study has no such budget.
    """
    refuse(
        (
            name and not study.budgets,
            f"{study.name} has no budgets, so that --budget {name} would change nothing; leave it out, or add "
            f"[budgets.{name}] to the study",
        )
    )
    if name and name not in study.budgets:
        there = ", ".join(study.budgets)
        raise CompressError(f"{study.name} has no budget {name!r}; it has {there}.{did_you_mean(name, study.budgets)}")
    return name or next(iter(study.budgets), "")


def within_budget(study: StudyRecipe, name: str) -> StudyRecipe:
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
