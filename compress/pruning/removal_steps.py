"""Execute a pruning plan: choose and remove the vocabulary, layers, heads, neurons and hidden size, in this order."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compress.data import Example
from compress.inference.speedup_intervals import Interval
from compress.models.prunable_units import units_of
from compress.models.resumption import cached_json
from compress.progress import Progress, each, logger
from compress.pruning.choose_units import choose_units
from compress.pruning.layer_and_width_scores import choose_removed_layers, hidden_importance
from compress.pruning.plan import PruningPlan, plan_units
from compress.pruning.pruned_state import PrunedState
from compress.pruning.recovery import MASKING_FOLDER, Recovery
from compress.pruning.scoring import Values
from compress.pruning.step_timing import StepTimer
from compress.surgery.unit_masks import Masks, mask_key, masks_from_json


def execute_plan(
    plan: PruningPlan,
    state: PrunedState,
    recovery: Recovery,
    timer: StepTimer,
    corpus: Iterable[Example] | None,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Remove everything from a model in place, evaluate each step, and return the decisions.

    Args:
        recovery: holds the scoring rows, and trains the model while the cubic schedule masks heads and neurons.
        corpus: text whose subword tokens are kept; None keeps all.
        folder: keeps each decision, so that a resumed run does not score again.
    """
    config, found = plan.config, dict[str, Any]()
    if corpus is not None:
        found["vocabulary"] = state.remove_vocabulary(corpus)
    batches = recovery.rows.batches(state.tokenizer, recovery.compute.device)
    if plan.layers:
        with progress("Removing layers", plan.layers) as advance:
            found["layers"] = cached_json(
                folder / "layers.json",
                lambda: choose_removed_layers(state.model, batches, plan.layers, advance),
            )
        state.remove_layers([step["layer"] for step in found["layers"]])
    units = plan_units(state.model, config) if plan.layers and plan.units else plan.units
    for part, count in units.items():
        there = sum(layer.count for layer in units_of(state.model, part))
        rounded = part == "neurons" and config.multiple > 1
        most = "up to " if config.has_target else "about " if rounded else ""
        stay = f"multiples of {config.multiple} stay in each layer" if rounded else f"{there - count:,} stay"
        logger.info("removing %s%s of %s %s, %s", most, f"{count:,}", f"{there:,}", part, stay)

    shutil.rmtree(folder / "candidates", ignore_errors=True)  # of a run that was stopped

    def speedup_of(masks: Masks) -> Interval:
        candidate = folder / "candidates" / mask_key(masks)
        state.save_without(masks, candidate)
        return timer.speedup(state.checkpoints["nothing"], candidate, config.speedup_batch_size)

    if config.schedule == "cubic":
        state.remove_units(recovery.mask_gradually(state, units, folder / MASKING_FOLDER))
    elif units:
        decision = cached_json(
            folder / "units.json",
            lambda: choose_units(
                state.evaluation("path"),
                batches,
                units,
                config,
                speedup_of,
                seed=recovery.compute.seed,
                values=Values(folder / "values.jsonl"),
                progress=progress,
            ),
        )
        masks = masks_from_json(decision.pop("masks"))
        found |= decision
        state.remove_units(masks)
    if plan.hidden:
        with progress("Scoring hidden width", len(batches)) as advance:
            scored = cached_json(
                folder / "hidden.json",
                lambda: hidden_importance(state.model, each(batches, advance)).argsort(stable=True).tolist(),
            )
        state.remove_hidden(sorted(scored[: plan.hidden]))
    return found
