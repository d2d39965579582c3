"""Describe a student recipe in words: architecture, phases, losses, published and measured results.

Figures of our own are texts in ``measured.json`` beside the recipes, which ``docs/generate.py`` writes from committed
results, so that nothing heavy is imported to tell them.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from compress import plugins, recipes
from compress.recipes import Choice, Phase, StudentRecipe, Training

FIGURES_NAME = "measured.json"
NO_FIGURE = "–"
PHASE_TEXTS = {
    "all": "the unlabelled text and the gold rows",
    "pool": "the unlabelled text",
    "gold": "the gold rows",
}
BY_LAYER = {
    "progressive": "one layer after the other from the lowest; the layers below rest",
    "stacked": "one layer after the other from the lowest; the layers below go on learning",
}


@cache
def figures() -> Mapping[str, list[dict[str, str]]]:
    """Return what was measured of every student recipe: texts by figure, an entry a data set and machine."""
    path = recipes.folder("students") / FIGURES_NAME
    found: dict[str, list[dict[str, str]]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def in_short(recipe: StudentRecipe) -> tuple[str, str, str, str]:
    """Return a recipe's published figures, ours, those of its control, and the command that trains it."""
    said = "; ".join(one.in_short for one in recipe.survey) or NO_FIGURE
    measured = figures().get(recipe.name)
    if not measured:
        return said, "not measured yet", NO_FIGURE, recipe.command
    one = {key: _first(text) for key, text in measured[0].items()}
    data, *others = measured[0]["data"].split(" + ")
    data += f" and {len(others)} more" if others else ""
    ours = f"{_smaller(measured[0])}{one['kept']}, {one['speedup_best']}"
    worth = f" ({one['worth']})" if one["worth"] != NO_FIGURE else ""
    return said, f"{one['metric']} on {data}: {ours}", measured[0]["control"] + worth, recipe.command


def explain(recipe: StudentRecipe) -> Iterator[str]:
    """Yield the lines that explain a recipe."""
    yield f"{recipe.name} (student)\n\n{recipe.description}"
    if recipe.paper:
        yield f"Paper: {recipe.paper}"
    yield "\nWhat is trained"
    yield f"  {_choice('architectures', recipe.architecture)}"
    if recipe.vocabulary:
        yield f"  It reads {recipe.vocabulary.size:,} subword tokens of its own, learned from the corpus."
    yield "\nWhat it learns, in this order"
    if recipe.augmentation:
        copies = recipe.augmentation.copies
        said = "a variant" if copies == 1 else f"{copies} variants"
        yield f"  To every unlabelled text comes {said} by {_choice('augmenters', recipe.augmentation.by)}"
    total = sum(phase.share for phase in recipe.phases)
    for number, phase in enumerate(recipe.phases, 1):
        yield from _phase(phase, number, phase.share / total)
    yield f"\nTraining: {in_words(recipe.training)}"
    if recipe.missing:
        yield "\nOf the paper's method it does not do yet:"
        yield from (f"  - {part}" for part in recipe.missing)
    yield from _published(recipe)
    yield from _measured(recipe)
    pool = "--unlabeled FILE " if recipe.reads_pool else ""
    yield f"\nTrain it: {recipe.command} --teacher DIR {pool}--train FILE -o DIR"
    if "--encoder" in recipe.command:
        yield "  --encoder: what the teacher was fine-tuned from; a teacher of 'compress finetune' names it itself"


def _phase(phase: Phase, number: int, share: float) -> Iterator[str]:
    """Yield in words what a phase reads, who teaches what, and what rests."""
    name = f"{phase.name}, " if phase.name else ""
    yield f"  {number}. {name}{share:.0%} of the steps"
    masked = f", {phase.masking:.0%} of the tokens masked" if phase.masking else ""
    yield f"     reads {PHASE_TEXTS[phase.text]}{masked}"
    yield f"     taught by {_teacher(phase)}"
    if phase.by_layer:
        yield f"     {BY_LAYER[phase.by_layer]}"
    for loss in phase.losses:
        weight = f", weight {loss.weight:g}" if loss.weight != 1 else ""
        yield f"     learns by {_choice('losses', loss)}{weight}"
    if phase.modifier:
        yield f"     meanwhile {_choice('modifiers', phase.modifier)}"
    if phase.frozen:
        yield f"     at rest: {', '.join(phase.frozen)}"
    if phase.training:
        yield f"     with {', '.join(f'{key} = {value}' for key, value in phase.training.items())}"


def _teacher(phase: Phase) -> str:
    """Say who teaches: nobody where all that is learned from stands in the rows."""
    if phase.needs and phase.needs <= {"labels"}:
        return "gold labels alone"
    if phase.needs and phase.needs <= {"labels", "targets"}:
        return "the text itself"
    return "the pretrained encoder, before the task" if phase.teacher == "encoder" else "the fine-tuned teacher"


def _published(recipe: StudentRecipe) -> Iterator[str]:
    if recipe.survey or recipe.published:
        yield "\nThe authors reported (a label, not a threshold):"
    for one in recipe.survey:
        speed = f", {one.speedup:g} times as fast" if one.speedup else ""
        yield (
            f"  - {one.system}, {one.model}: {one.compression:g} times smaller than {one.baseline}, "
            f"{one.performance_kept:g}% of its performance kept{speed}; evaluation: {one.evaluated_on} "
            "(Rogers et al. 2020, Table 1)"
        )
    for p in recipe.published:
        yield f"  - {p.dataset}: {p.metric} {p.value:g} (teacher {p.teacher:g}); {p.source}"


def _measured(recipe: StudentRecipe) -> Iterator[str]:
    for one in figures().get(recipe.name, ()):
        yield f"\nMeasured here on {one['data']}, seeds: {one['seeds']}, steps: {one['steps']}"
        yield f"  {one['metric_name']} {one['metric']}, {one['kept']} of the teacher's; {one['difference']} points"
        yield f"  {one['shape']}: {one['parameters']} parameters, {one['disk']} on disk"
        yield f"  speed-up {one['speedup_torch']} in torch, at best {one['speedup_best']}"
        if one["control"] != NO_FIGURE:
            yield f"  its control, on gold labels alone: {one['control']}; distillation is worth {one['worth']} points"
        yield f"  made by: {one['made_by']}"


def _choice(folder: str, choice: Choice) -> str:
    plugin = plugins.find(folder, choice.name)
    options = ", ".join(f"{key} = {value}" for key, value in choice.options.items())
    return f"{choice.name}" + (f" ({options})" if options else "") + f": {plugin.summary}"


def in_words(training: Training) -> str:
    """Return how a recipe trains, in one line."""
    length = f"{training.epochs:g} epochs" + (f", at most {training.max_steps} steps" if training.max_steps else "")
    return (
        f"{length}, batches of {training.batch_size}, learning rate {training.learning_rate:g}, {training.schedule} "
        f"schedule, texts cut to {training.max_length} tokens, precision {training.precision}"
    )


def _first(text: str) -> str:
    """Return a figure without its interval or what it is of."""
    return text.partition(" (")[0]


def _smaller(one: Mapping[str, Any]) -> str:
    """Return how many times smaller on disk, where it is: quantization keeps the number of parameters."""
    _, found, ratio = one["disk"].partition("(÷")
    return f"÷{ratio.rstrip(')')}, " if found else ""
