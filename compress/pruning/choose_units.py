"""Choose the heads and neurons to remove: as many as an amount, an accuracy drop or a speed-up asks for."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compress.errors import CompressError
from compress.inference.speed_statistics import Interval
from compress.models.batch import Batch
from compress.models.prunable_units import Part, Units, units_of
from compress.progress import Progress
from compress.pruning.evaluation import MaskedEvaluation
from compress.pruning.removal_path import PathStep, first_that, removal_path
from compress.pruning.scoring import Values
from compress.recipes import Pruning
from compress.surgery.unit_masks import Masks, unmasked

logger = logging.getLogger("compress")


def choose_units(
    evaluation: MaskedEvaluation,
    batches: Sequence[Batch],
    amounts: Mapping[Part, int],
    config: Pruning,
    speedup_of: Callable[[Masks], Interval],
    *,
    seed: int,
    values: Values,
    progress: Progress,
) -> dict[str, Any]:
    """Follow the removal path until the target is met; return masks, first scores and evaluated points as JSON values.

    Args:
        evaluation: evaluates the model to prune against the predictions of the unpruned one.
        speedup_of: measures the speed-up of the model without masked heads and neurons.
        values: what a criterion of many evaluations knows already.

    Raises:
        CompressError: no step of the path meets the target.
    """
    model, limit = evaluation.model, config.max_accuracy_drop
    weights = {part: [_weights(units) for units in units_of(model, part)] for part in amounts}
    steps = [PathStep(unmasked(model, list(amounts)), {})]
    curve = [_point(steps[0], weights, evaluation)]

    def drops_too_much(point: Mapping[str, Any]) -> bool:
        return bool(limit and point["low"] < -limit)

    if drops_too_much(curve[0]) and curve[0]["points"]:
        raise CompressError(
            f"--max-accuracy-drop {limit:g} is broken before any head or neuron goes: the layers or word pieces that "
            f"are gone cost {_described(curve[0])}; remove fewer of them, or allow more"
        )
    with progress("Removing heads and neurons", sum(amounts.values())) as advance:
        for step in removal_path(model, batches, amounts, config, seed=seed, values=values):
            steps.append(step)
            curve.append(_point(step, weights, evaluation))
            advance(sum(step.removed.values()) - sum(steps[-2].removed.values()))
            if drops_too_much(curve[-1]):
                break
    if drops_too_much(curve[1]):
        raise CompressError(
            f"--max-accuracy-drop {limit:g} allows nothing: the first step is {_described(curve[1])}; "
            "allow more, take smaller steps with --step, or give more validation rows, which narrow the interval"
        )
    reached: dict[str, Any] = {}
    position = len(steps) - 1 - drops_too_much(curve[-1])
    if config.speedup:
        position, ratio = _fast_enough(steps, config, speedup_of)
        reached = {"target": {"asked": config.speedup, "batch_size": config.speedup_batch_size, **ratio._asdict()}}
    curve[position]["chosen"] = True
    return {
        "masks": {part: [row.int().tolist() for row in rows] for part, rows in steps[position].masks.items()},
        "importance": {part: scores.tolist() for part, scores in steps[1].scores.items()},
        "curve": curve,
        **reached,
    }


def _described(point: Mapping[str, Any]) -> str:
    return (
        f"{point['points']:+.2f} points ({point['low']:+.2f} to {point['high']:+.2f}) on {point['rows']:,} rows of "
        f"{point['split']}"
    )


def _fast_enough(
    steps: Sequence[PathStep], config: Pruning, speedup_of: Callable[[Masks], Interval]
) -> tuple[int, Interval]:
    """Return the position of the first step that reaches the speed-up, and its measured speed-up."""
    measured: dict[int, Interval] = {}

    def reaches(number: int) -> bool:
        measured[number] = ratio = speedup_of(steps[number].masks)
        removed = " and ".join(f"{count} {part}" for part, count in steps[number].removed.items())
        logger.info("without %s: x%.2f (%.2f to %.2f)", removed, ratio.value, ratio.low, ratio.high)
        return ratio.value >= config.speedup

    position = first_that(range(len(steps)), reaches)
    if position is None:
        best = max(measured.values(), key=lambda ratio: ratio.value)
        raise CompressError(
            f"--speedup {config.speedup:g} is out of reach: without all heads and neurons that may go the model is "
            f"x{best.value:.2f} ({best.low:.2f} to {best.high:.2f}) as fast here at batch size "
            f"{config.speedup_batch_size}; add --layers, or ask for less"
        )
    return position, measured[position]


def _point(step: PathStep, weights: Mapping[Part, Sequence[int]], evaluation: MaskedEvaluation) -> dict[str, Any]:
    """Return a point of the pruning curve: numbers of removed heads and neurons, and the metric without them."""
    rows, removed, total = evaluation.rows, 0, 0
    counts: dict[str, int] = {}
    for part, masks in step.masks.items():
        counts[f"{part}_removed"] = step.removed[part]
        counts[f"{part}_kept"] = sum(map(len, masks)) - step.removed[part]
        for weight, mask in zip(weights[part], masks, strict=True):
            removed += weight * int((mask == 0).sum())
            total += weight * len(mask)
    return {
        **counts,
        "share_removed": round(removed / total, 4),
        "metric": rows.metric.name,
        **evaluation.effect(step.masks),
        "split": rows.split,
        "rows": len(rows.gold.examples),
        "recovered": False,
        "chosen": False,
    }


def _weights(units: Units) -> int:
    """Return how many weights one head, or neuron, of a layer owns."""
    owned = sum(parameter.numel() for linear in units.rows for parameter in linear.parameters())
    return (owned + units.columns.weight.numel()) // units.count
