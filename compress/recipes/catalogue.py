"""List and describe recipes and plug-ins (``compress list``, ``compress show``) without importing any plug-in."""

from collections.abc import Iterator, Mapping
from typing import Any

from compress import plugins, recipes
from compress.errors import CompressError, did_you_mean
from compress.recipes import Budget, StudentRecipe, StudyPrune, StudyRecipe, TeacherRecipe
from compress.recipes.explain import explain, in_short, in_words
from compress.recipes.pruning import AMOUNTS

# What a user lists -> where it lies.
RECIPE_KINDS: Mapping[str, Any] = {"teachers": "teachers", "students": "students", "studies": "benchmarks"}
PLUGIN_KINDS = (
    "losses",
    "modifiers",
    "augmenters",
    "criteria",
    "quantizers",
    "runtimes",
    "architectures",
    "exporters",
    "baselines",
    "competitors",
)
LISTED_KINDS = (*RECIPE_KINDS, *PLUGIN_KINDS)
STUDENT_HEADINGS = ("student", "published", "measured here", "its control", "command")


def entries(kind: str) -> list[tuple[str, str]]:
    """Return ``(name, one line)`` of everything of a kind."""
    if kind in RECIPE_KINDS:
        loaded = (recipes.load_recipe(RECIPE_KINDS[kind], name) for name in recipes.recipe_names(RECIPE_KINDS[kind]))
        return [(r.name, r.title if isinstance(r, StudyRecipe) else r.description.strip()) for r in loaded]
    return [(name, plugins.find(kind, name).summary) for name in plugins.names(kind)]


def students() -> list[tuple[str, ...]]:
    """Return of every student its name, published figures, ours, its control's, and its command, below headings."""
    loaded = (recipes.load_recipe("students", name) for name in recipes.recipe_names("students"))
    return [STUDENT_HEADINGS, *((recipe.name, *in_short(recipe)) for recipe in loaded)]


def describe(name: str) -> str:
    """Return everything that is known of a name, in words.

    Raises:
        CompressError: nothing has that name (with a did-you-mean).
    """
    key = name.removesuffix(".toml").replace("_", "-")
    found = []
    for kind, folder in RECIPE_KINDS.items():
        if name.endswith(".toml") or key not in recipes.recipe_names(folder):
            continue
        found.append("\n".join(_recipe(recipes.load_recipe(folder, key), kind)))
    for folder in PLUGIN_KINDS:
        if key in plugins.names(folder):
            found.append("\n".join(_plugin(plugins.find(folder, key))))
    if not found:
        every = [other for kind in LISTED_KINDS for other, _ in entries(kind)]
        raise CompressError(f"nothing is called {name!r}; see 'compress list students'.{did_you_mean(key, every)}")
    return "\n\n".join(found)


def _recipe(recipe: Any, kind: str) -> Iterator[str]:
    if isinstance(recipe, StudentRecipe):
        yield from explain(recipe)
    elif isinstance(recipe, TeacherRecipe):
        yield f"{recipe.name} (teacher)\n\n{recipe.description}\n"
        yield f"Weights: the package {recipe.package}, or {recipe.hub} on the Hugging Face hub."
        yield f"Training: {in_words(recipe.training)}"
    elif isinstance(recipe, StudyRecipe):
        yield f"{recipe.name} (study): {recipe.title}\n\n{recipe.description.strip()}\n"
        yield f"Students: {', '.join(plan.name or plan.recipe for plan in recipe.students) or 'none'}"
        yield f"Pruning: {'; '.join(_removed(plan) for plan in recipe.prune) or 'none'}"
        for name, budget in recipe.budgets.items():
            yield f"Budget {name}: {_budget(budget)}"
        yield f"Run it: compress run {recipe.name} -o DIR"


def _removed(plan: StudyPrune) -> str:
    """Return in words what a study removes from its teacher."""
    amounts = [f"{name} {getattr(plan, name)}" for name in AMOUNTS if getattr(plan, name)]
    targets = [f"at most {plan.max_accuracy_drop:g} points"] * bool(plan.max_accuracy_drop)
    targets += [f"x{plan.speedup:g} as fast"] * bool(plan.speedup)
    told = ", ".join([*amounts, *targets])
    return f"{plan.name}: {told}" if plan.name else told


def _budget(budget: Budget) -> str:
    """Return in words what a budget replaces."""
    parts = [f"{budget.rows:,} rows of every unlabelled set"] if budget.rows else []
    for who, changes in (("students", budget.training), ("teacher", budget.teacher)):
        if changes:
            parts.append(f"{who} with {', '.join(f'{key} = {value}' for key, value in changes.items())}")
    return "; ".join(parts) or "what the recipes say"


def _plugin(plugin: plugins.Plugin) -> Iterator[str]:
    yield f"{plugin.name} ({plugin.folder})\n\n{plugin.description}"
    if plugin.parameters:
        yield "\nOptions:"
        yield from (
            f"  {name}: {p.annotation}" + (f" = {p.default}" if p.default else " (required)")
            for name, p in plugin.parameters.items()
        )
