"""What there is to choose from, and what each thing is, read from recipes and plug-ins without importing any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from compress import plugins, recipes
from compress.errors import CompressError, did_you_mean
from compress.recipes import BenchmarkRecipe, Choice, Phase, StudentRecipe, TeacherRecipe

# What a user lists -> where it lies.
RECIPE_KINDS: Mapping[str, Any] = {"teachers": "teachers", "students": "students", "studies": "benchmarks"}
PLUGIN_KINDS = (
    "losses", "interventions", "augmenters", "criteria", "quantizers", "runtimes", "architectures", "exporters",
    "floors", "peers",
)  # fmt: skip
KINDS = (*RECIPE_KINDS, *PLUGIN_KINDS)


def entries(kind: str) -> list[tuple[str, str]]:
    """Return ``(name, one line)`` of everything of a kind."""
    if kind in RECIPE_KINDS:
        loaded = (recipes.load(RECIPE_KINDS[kind], name) for name in recipes.names(RECIPE_KINDS[kind]))
        return [(r.name, r.title if isinstance(r, BenchmarkRecipe) else r.description.strip()) for r in loaded]
    return [(name, plugins.find(kind, name).summary) for name in plugins.names(kind)]


def describe(name: str) -> str:
    """Return everything that is known of a name, in words.

    Raises:
        CompressError: nothing has that name (with a did-you-mean).
    """
    key = name.removesuffix(".toml").replace("_", "-")
    found = []
    for kind, folder in RECIPE_KINDS.items():
        if name.endswith(".toml") or key not in recipes.names(folder):
            continue
        found.append("\n".join(_recipe(recipes.load(folder, key), kind)))
    for folder in PLUGIN_KINDS:
        if key in plugins.names(folder):
            found.append("\n".join(_plugin(plugins.find(folder, key))))
    if not found:
        every = [other for kind in KINDS for other, _ in entries(kind)]
        raise CompressError(f"nothing is called {name!r}; see 'compress list students'.{did_you_mean(key, every)}")
    return "\n\n".join(found)


def _recipe(recipe: Any, kind: str) -> Iterator[str]:
    if isinstance(recipe, StudentRecipe):
        yield from _student(recipe)
    elif isinstance(recipe, TeacherRecipe):
        yield f"{recipe.name} (teacher)\n\n{recipe.description}\n"
        yield f"Weights: the package {recipe.package}, or {recipe.hub} on the Hugging Face hub."
        yield f"Training: {_training(recipe.training)}"
    elif isinstance(recipe, BenchmarkRecipe):
        yield f"{recipe.name} (study): {recipe.title}\n\n{recipe.description.strip()}\n"
        yield f"Students: {', '.join(plan.recipe for plan in recipe.students)}"
        yield f"Pruning: {', '.join(plan.heads for plan in recipe.prune) or 'none'}"
        yield f"Run it: compress run {recipe.name} -o DIR"


def _student(recipe: StudentRecipe) -> Iterator[str]:
    yield f"{recipe.name} (student)\n\n{recipe.description}"
    if recipe.paper:
        yield f"Paper: {recipe.paper}"
    yield f"\nArchitecture: {_choice('architectures', recipe.architecture)}"
    if recipe.vocabulary:
        yield f"Vocabulary: {recipe.vocabulary.size:,} word pieces learned from the corpus"
    if recipe.augmentation:
        by = _choice("augmenters", recipe.augmentation.by)
        yield f"Text: each row and {recipe.augmentation.copies} variants of it by {by}"
    total = sum(phase.share for phase in recipe.phases)
    for number, phase in enumerate(recipe.phases, 1):
        yield f"\nPhase {number}: {_phase(phase, phase.share / total)}"
        for loss in phase.losses:
            yield f"  learns by {_choice('losses', loss)}" + (f", weight {loss.weight:g}" if loss.weight != 1 else "")
    yield f"\nTraining: {_training(recipe.training)}"
    if recipe.missing:
        yield "\nOf the paper's method it does not do yet:"
        yield from (f"  - {part}" for part in recipe.missing)
    if recipe.published:
        yield "\nThe authors reported (a label, not a threshold):"
        yield from (
            f"  - {p.dataset}: {p.metric} {p.value:g} (teacher {p.teacher:g}); {p.source}" for p in recipe.published
        )


TEXTS = {
    "all": "the unlabelled text and the gold rows", "pool": "the unlabelled text", "gold": "the gold rows",
}  # fmt: skip


def _phase(phase: Phase, share: float) -> str:
    """Return in words what a phase reads, who teaches, and what rests."""
    said = [f"{share:.0%} of the steps, on {TEXTS[phase.text]}"]
    if phase.teacher == "encoder":
        said.append("taught by the pretrained encoder, before the task")
    if phase.masking:
        said.append(f"{phase.masking:.0%} of the tokens masked")
    if phase.by_layer:
        below = "the layers below rest" if phase.by_layer == "progressive" else "the layers below go on learning"
        said.append(f"one layer after the other from the lowest, {below}")
    if phase.frozen:
        said.append(f"{' and '.join(phase.frozen)} frozen")
    if phase.intervention:
        said.append(f"with {_choice('interventions', phase.intervention)}")
    said += [f"{key} {value}" for key, value in phase.training.items()]
    return (f"{phase.name}: " if phase.name else "") + "; ".join(said)


def _choice(folder: str, choice: Choice) -> str:
    plugin = plugins.find(folder, choice.name)
    options = ", ".join(f"{key} = {value}" for key, value in choice.options.items())
    return f"{choice.name}" + (f" ({options})" if options else "") + f": {plugin.summary}"


def _training(training: recipes.Training) -> str:
    length = f"{training.epochs:g} epochs" + (f", at most {training.max_steps} steps" if training.max_steps else "")
    return (
        f"{length}, batches of {training.batch_size}, learning rate {training.learning_rate:g}, {training.schedule} "
        f"schedule, texts cut to {training.max_length} tokens, precision {training.precision}"
    )


def _plugin(plugin: plugins.Plugin) -> Iterator[str]:
    yield f"{plugin.name} ({plugin.folder})\n\n{plugin.description}"
    if plugin.parameters:
        yield "\nOptions:"
        yield from (
            f"  {name}: {p.annotation}" + (f" = {p.default}" if p.default else " (required)")
            for name, p in plugin.parameters.items()
        )
