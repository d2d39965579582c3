"""Find, read, write, list and explain recipes and plug-ins (``compress list``, ``compress show``).

No plug-in is imported. Figures of our own are texts in ``measured.json`` beside the recipes, which ``docs/generate.py``
writes from committed results.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import pydantic

from compress import plugins
from compress.errors import CompressError, did_you_mean, refuse
from compress.files import read_json_table, read_toml
from compress.recipes.parsing import Choice, parse
from compress.recipes.pruning import AMOUNTS
from compress.recipes.student import Phase, StudentRecipe
from compress.recipes.study import Budget, StudyPrune, StudyRecipe
from compress.recipes.training import TeacherRecipe, Training

Kind = Literal["teachers", "students", "benchmarks"]


class RecipeKind(NamedTuple):
    """Recipes of one folder: their class, what one is called, how all are listed, and the command that takes one."""

    recipe: Any
    called: str
    listed: str
    command: str


RECIPE_KINDS: Mapping[Kind, RecipeKind] = {
    "teachers": RecipeKind(TeacherRecipe, "teacher", "teachers", "compress finetune --teacher"),
    "students": RecipeKind(StudentRecipe, "student", "students", "compress distill --student"),
    "benchmarks": RecipeKind(StudyRecipe, "study", "studies", "compress run"),
}
_FOLDERS: Mapping[str, Kind] = {kind.listed: name for name, kind in RECIPE_KINDS.items()}
LISTED_KINDS = (*_FOLDERS, *plugins.KINDS)
STUDENT_HEADINGS = ("student", "published", "measured here", "study", "steps", "metric", "its control", "500 labels")
FEW_LABELS = "table2"  # the study of the last column
BELOW_CONTROL = (
    "Below the control, in points with 95% interval, and how the training differs (whether that is why was not "
    "measured):"
)
FIGURES_NAME = "measured.json"
NO_FIGURE = "–"
PHASE_TEXTS = {
    "all": "the unlabelled text and the gold rows",
    "pool": "the unlabelled text",
    "gold": "the gold rows",
}
BY_LAYER = {
    "progressive": "one layer after the other from the lowest; the layers below are frozen",
    "stacked": "one layer after the other from the lowest; the layers below go on learning",
}


def folder(kind: Kind) -> Path:
    """Return where the recipes of a kind lie: in the installed package, else beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_recipes" / kind
    return installed if installed.is_dir() else package.parent / kind


def recipe_names(kind: Kind) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in folder(kind).glob("*.toml")))


# Reading and writing


def load_recipe(kind: Kind, name_or_path: Any) -> Any:
    """Read a recipe by name, or from a ``.toml`` file; one that is read stays as it is.

    Raises:
        CompressError: no such recipe (with a did-you-mean), or every fault of the file at once.
    """
    if isinstance(name_or_path, RECIPE_KINDS[kind].recipe):
        return name_or_path
    path, known, called = Path(name_or_path), recipe_names(kind), RECIPE_KINDS[kind].called
    is_name = path.suffix != ".toml"
    if is_name:
        path = folder(kind) / f"{name_or_path}.toml"
    refuse(
        (
            is_name and str(name_or_path) not in known,
            f"unknown {called} {name_or_path!r}; there is {', '.join(known)}, or give a .toml file."
            f"{did_you_mean(str(name_or_path), known)}",
        ),
        (not os.path.exists(path), f"{name_or_path} does not exist; {called} recipes here: {', '.join(known)}"),
    )
    table = read_toml(path)
    other = RECIPE_KINDS[_kind_of(table, kind)]
    refuse(
        (
            other.called != called,
            f"{path.name} is the recipe of a {other.called}, which '{other.command}' takes; give that of a {called} "
            "here",
        )
    )
    if kind == "benchmarks" and "like" in table:
        table = {**_study_like(table.pop("like"), path.name), **table}
    return parse(RECIPE_KINDS[kind].recipe, {**table, "name": path.stem}, source=path.name)


def known_student(name: str) -> StudentRecipe | None:
    """Return the student recipe of a name; None where there is none here, or where it has since been broken."""
    if name not in recipe_names("students"):  # names come from result files, and no other file is opened
        return None
    try:
        return cast(StudentRecipe, load_recipe("students", name))
    except CompressError:
        return None


def _kind_of(table: Mapping[str, Any], likely: Kind = "teachers") -> Kind:
    """Return the kind of recipe of which a table has most keys, of several the likely one."""

    def known(kind: Kind) -> tuple[int, bool]:
        keys = {field.name for field in dataclasses.fields(RECIPE_KINDS[kind].recipe)}
        return len(keys & table.keys()) + (kind == "benchmarks" and "like" in table), kind == likely

    return max(RECIPE_KINDS, key=known)


def _study_like(name: Any, source: str) -> dict[str, Any]:
    """Read the study that another one names with ``like``, which has all that the other does not say."""
    known, fault = recipe_names("benchmarks"), f"{source} has 1 fault: like = {name!r} is"
    refuse((name not in known, f"{fault} no study; there is {', '.join(known)}.{did_you_mean(str(name), known)}"))
    table = read_toml(folder("benchmarks") / f"{name}.toml")
    refuse(("like" in table, f"{fault} itself like another; name {table.get('like')!r}"))
    return table


def student_toml(recipe: StudentRecipe) -> str:
    """Return the file of a student recipe; reading it gives the same recipe, named by the file."""
    table = pydantic.TypeAdapter(StudentRecipe).dump_python(
        recipe, mode="json", exclude_defaults=True, exclude={"name"}
    )
    lines, tables = list[str](), list[str]()
    for key, value in table.items():
        several = value if isinstance(value, list) else [value]
        if not isinstance(several[0], dict):
            lines.append(f"{key} = {_inline(value)}")
            continue
        for one in several:
            tables += ["", f"[[{key}]]" if isinstance(value, list) else f"[{key}]"]
            tables += [f"{name} = {_inline(item)}" for name, item in one.items()]
    return "\n".join([*lines, *tables]) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    # Texts, numbers and booleans are written as in JSON, but for the one control character that JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# Listing and explaining


def entries(kind: str) -> list[tuple[str, str]]:
    """Return ``(name, one line)`` of everything of a kind."""
    if kind in _FOLDERS:
        loaded = (load_recipe(_FOLDERS[kind], name) for name in recipe_names(_FOLDERS[kind]))
        return [(r.name, r.title if isinstance(r, StudyRecipe) else r.description.strip()) for r in loaded]
    return [(name, _summary(kind, name)) for name in plugins.names(kind)]


def _summary(kind: str, name: str) -> str:
    """Return what a plug-in says of itself, or why it cannot be used: one of another package hides no others."""
    try:
        return plugins.find(kind, name).summary
    except CompressError as error:
        return f"cannot be used: {error}"


def students() -> list[StudentRecipe]:
    """Return every student recipe, by name."""
    return [load_recipe("students", name) for name in recipe_names("students")]


def known_as(name: str) -> dict[str, Any]:
    """Return the recipes and plug-ins of a name by what they are, or the recipe of a ``.toml`` file.

    Raises:
        CompressError: nothing has that name (with a did-you-mean), or the file is no recipe.
    """
    if name.endswith(".toml") and os.path.exists(name):
        kind = _kind_of(read_toml(Path(name)))
        return {RECIPE_KINDS[kind].listed: dataclasses.replace(load_recipe(kind, name), name=name)}
    key = name.replace("_", "-")
    found = {listed: load_recipe(kind, key) for listed, kind in _FOLDERS.items() if key in recipe_names(kind)}
    found |= {kind: plugins.find(kind, key) for kind in plugins.KINDS if key in plugins.names(kind)}
    refuse(
        (
            not found and os.path.isfile(name),
            f"{name} is not a recipe (.toml); 'compress show' takes a name, a recipe, or the directory of a model or "
            "study, and 'compress report' shows results",
        )
    )
    if not found:
        every = [other for kind in LISTED_KINDS for other, _ in entries(kind)]
        what = f"{name} does not exist" if name.endswith(".toml") else f"nothing is called {name!r}"
        hint = did_you_mean(key.removesuffix(".toml"), every)
        raise CompressError(f"{what}; see 'compress list students', or give a .toml file.{hint}")
    return found


def explain(known: StudentRecipe | TeacherRecipe | StudyRecipe | plugins.Plugin) -> str:
    """Return a plug-in or a recipe in words; of a student its architecture, phases, losses and results."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compress.recipes"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(training=_training, removed=_removed, budget=_budget, teacher=_teacher, pairs=_pairs)
    environment.globals.update(choice=_choice, phase_texts=PHASE_TEXTS, by_layer=BY_LAYER, no_figure=NO_FIGURE)
    called = next((kind.called for kind in RECIPE_KINDS.values() if isinstance(known, kind.recipe)), "plugin")
    template = environment.get_template(f"{called}.txt.j2")
    return template.render(known=known, measured=figures().get(known.name, ())).rstrip("\n")


def in_short(recipe: StudentRecipe) -> tuple[str, ...]:
    """Return a recipe's figures under :data:`STUDENT_HEADINGS`, without intervals but for the last."""
    said = "; ".join(one.in_short for one in recipe.survey if not one.reference_model) or NO_FIGURE
    measured = figures().get(recipe.name)
    if not measured:
        return recipe.name, said, "not measured yet", *[NO_FIGURE] * 5
    first = measured[0]
    one = {key: text.partition(" (")[0] for key, text in first.items()}
    data, *others = (name.rpartition("/")[2].partition(" ")[0] for name in first["data"].split(" + "))
    # Where it is smaller on disk: quantization keeps the number of parameters.
    _, is_smaller, ratio = first["disk"].partition("(÷")
    smaller = f"÷{ratio.rstrip(')')}, " if is_smaller else ""
    few_labels = (other["worth"] for other in measured if other["study"] == FEW_LABELS)
    return (
        recipe.name,
        said,
        f"{smaller}{one['kept']}, {one['speedup_best']}",
        f"{first['study']}: {data}" + (f" +{len(others)}" if others else ""),
        re.sub(r" \(of (\d+) rows?\)", r" x \1", first["steps"]),
        one["metric"],
        one["control"] + (f" ({one['worth']})" if one["worth"] != NO_FIGURE else ""),
        next(few_labels, NO_FIGURE),
    )


def behind(recipe: StudentRecipe) -> str:
    """Return how far the first figure of a student is below its control's, and why; empty where it is not."""
    worth = next((one["worth"] for one in figures().get(recipe.name, ())), NO_FIGURE)
    if not worth.startswith("−"):
        return ""
    high = worth.partition(" to ")[2]
    doubt = "no interval" if not high else "" if high.startswith("−") else "the interval contains 0"
    return f"{worth}: {'; '.join(filter(None, (doubt, recipe.limits)))}"


@cache
def figures() -> Mapping[str, list[dict[str, str]]]:
    """Return what was measured of every student recipe: texts by figure, an entry a data set and machine."""
    path = folder("students") / FIGURES_NAME
    return read_json_table(path) if path.is_file() else {}


def _choice(folder: str, choice: Choice) -> str:
    options = f" ({_pairs(choice.options)})" if choice.options else ""
    return f"{choice.name}{options}: {plugins.find(folder, choice.name).summary}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _teacher(phase: Phase) -> str:
    """Say who teaches: nobody where all that is learned from stands in the rows."""
    if phase.needs and phase.needs <= {"labels"}:
        return "gold labels alone"
    if phase.needs and phase.needs <= {"labels", "targets"}:
        return "the text itself"
    return "the pretrained encoder, before the task" if phase.teacher == "encoder" else "the fine-tuned teacher"


def _training(training: Training) -> str:
    """Return how a recipe trains, in one line."""
    length = f"{training.epochs:g} epochs"
    length += f", for few rows {training.min_steps} steps" if training.min_steps else ""
    length += f", at most {training.max_steps} steps" if training.max_steps else ""
    cut = f"texts cut to {training.max_length} tokens" if training.max_length else "texts cut to a length by the rows"
    return (
        f"{length}, batches of {training.batch_size}, learning rate {training.learning_rate:g}, {training.schedule} "
        f"schedule, {cut}, precision {training.precision}"
    )


def _removed(plan: StudyPrune) -> str:
    """Return in words what a study removes from its teacher."""
    told = [f"{name} {getattr(plan, name)}" for name in AMOUNTS if getattr(plan, name)]
    told += [f"at most {plan.max_accuracy_drop or 0:g} points"] * bool(plan.max_accuracy_drop)
    told += [f"x{plan.speedup or 0:g} as fast"] * bool(plan.speedup)
    return (f"{plan.name}: " if plan.name else "") + ", ".join(told)


def _budget(budget: Budget) -> str:
    """Return in words what a budget replaces."""
    parts = [f"{budget.rows:,} rows of every unlabelled set"] if budget.rows else []
    parts += [f"students with {_pairs(budget.training)}"] if budget.training else []
    parts += [f"teacher with {_pairs(budget.teacher)}"] if budget.teacher else []
    return "; ".join(parts) or "what the recipes say"
