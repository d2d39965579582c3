"""List and describe recipes and plug-ins (``compress list``, ``compress show``) without importing any plug-in.

Figures of our own are texts in ``measured.json`` beside the recipes, which ``docs/generate.py`` writes from committed
results.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from compress import plugins, recipes
from compress.errors import CompressError, did_you_mean
from compress.files import read_json_table
from compress.recipes import Budget, Choice, Phase, StudentRecipe, StudyPrune, StudyRecipe, TeacherRecipe, Training
from compress.recipes.pruning import AMOUNTS

# What a user lists -> where it lies.
RECIPE_KINDS: Mapping[str, Any] = {"teachers": "teachers", "students": "students", "studies": "benchmarks"}
PLUGIN_KINDS = tuple(plugins.KINDS)
LISTED_KINDS = (*RECIPE_KINDS, *PLUGIN_KINDS)
STUDENT_HEADINGS = ("student", "published", "measured here", "study", "steps", "metric", "its control", "500 labels")
FEW_LABELS = "table2"  # the study of the last column
BELOW_CONTROL = (
    "Below the control, in points with 95% interval, and how the training differs (whether that is why was not "
    "measured):"
)
TEMPLATES = {StudentRecipe: "student", TeacherRecipe: "teacher", StudyRecipe: "study"}
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


def entries(kind: str) -> list[tuple[str, str]]:
    """Return ``(name, one line)`` of everything of a kind."""
    if kind in RECIPE_KINDS:
        loaded = (recipes.load_recipe(RECIPE_KINDS[kind], name) for name in recipes.recipe_names(RECIPE_KINDS[kind]))
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
    return [recipes.load_recipe("students", name) for name in recipes.recipe_names("students")]


def describe(name: str) -> str:
    """Return everything that is known of a name, or of a recipe in a ``.toml`` file, in words.

    Raises:
        CompressError: nothing has that name (with a did-you-mean), or the file is no recipe.
    """
    if name.endswith(".toml") and os.path.exists(name):
        return explain(recipes.load_file(name))
    key, folders = name.replace("_", "-"), RECIPE_KINDS.values()
    found = [explain(recipes.load_recipe(folder, key)) for folder in folders if key in recipes.recipe_names(folder)]
    found += [_render("plugin", plugin=plugins.find(kind, key)) for kind in PLUGIN_KINDS if key in plugins.names(kind)]
    if not found and os.path.isfile(name):
        raise CompressError(
            f"{name} is not a recipe (.toml); 'compress show' takes a name, a recipe, or the directory of a model or "
            "study, and 'compress report' shows results"
        )
    if not found:
        every = [other for kind in LISTED_KINDS for other, _ in entries(kind)]
        what = f"{name} does not exist" if name.endswith(".toml") else f"nothing is called {name!r}"
        hint = did_you_mean(key.removesuffix(".toml"), every)
        raise CompressError(f"{what}; see 'compress list students', or give a .toml file.{hint}")
    return "\n\n".join(found)


def explain(recipe: StudentRecipe | TeacherRecipe | StudyRecipe) -> str:
    """Return a recipe in words; of a student its architecture, phases, losses, published and measured results."""
    return _render(TEMPLATES[type(recipe)], recipe=recipe, measured=figures().get(recipe.name, ()))


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
    path = recipes.folder("students") / FIGURES_NAME
    found: dict[str, list[dict[str, str]]] = read_json_table(path) if path.is_file() else {}
    return found


def _render(template: str, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compress.recipes"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(training=_training, removed=_removed, budget=_budget, teacher=_teacher, pairs=_pairs)
    environment.globals.update(choice=_choice, phase_texts=PHASE_TEXTS, by_layer=BY_LAYER, no_figure=NO_FIGURE)
    return environment.get_template(f"{template}.txt.j2").render(values).rstrip("\n")


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
    told += [f"at most {plan.max_accuracy_drop:g} points"] * bool(plan.max_accuracy_drop)
    told += [f"x{plan.speedup:g} as fast"] * bool(plan.speedup)
    return (f"{plan.name}: " if plan.name else "") + ", ".join(told)


def _budget(budget: Budget) -> str:
    """Return in words what a budget replaces."""
    parts = [f"{budget.rows:,} rows of every unlabelled set"] if budget.rows else []
    parts += [f"students with {_pairs(budget.training)}"] if budget.training else []
    parts += [f"teacher with {_pairs(budget.teacher)}"] if budget.teacher else []
    return "; ".join(parts) or "what the recipes say"
