"""What goes: how much of everything, and which heads and neurons, as far as amounts, accuracy or speed say."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from compress.errors import CompressError
from compress.inference.timing import Ratio
from compress.models.modeling.families import head_size_of
from compress.models.prunable_units import Part, has_units, units_of
from compress.progress import Progress
from compress.pruning.masked_evaluation import Evaluations
from compress.pruning.removal_path import (
    Step,
    check_criterion,
    first_that,
    kept_at_least,
    mask_least_important,
    removal_path,
)
from compress.pruning.scoring import Values
from compress.recipes import Pruning
from compress.recipes.amounts import MOST, units_to_remove
from compress.surgery.unit_masks import Masks, unmasked

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel

    from compress.models.batch import Batch


logger = logging.getLogger("compress")

OPTIONS: Mapping[Part, str] = {"heads": "--heads", "neurons": "--ffn"}


def amounts_of(model: PreTrainedModel, pruning: Pruning) -> dict[Part, int]:
    """Return how many heads and neurons go at most. A target without amounts may take all that can go.

    Raises:
        CompressError: an amount that the model cannot give, or a criterion that does not score a part.
    """
    asked: dict[Part, str] = {"heads": pruning.heads, "neurons": pruning.ffn}
    if pruning.has_target and not any(asked.values()):
        asked = {part: MOST for part in asked if _can_give(model, part, pruning)}
        if not asked:
            raise CompressError("every layer of this model has as few heads and neurons as it keeps; remove --layers")
    amounts = {
        part: units_to_remove(
            OPTIONS[part],
            amount,
            [units.count for units in units_of(model, part)],
            part,
            keep=kept_at_least(part, pruning),
        )
        for part, amount in asked.items()
        if amount
    }
    check_criterion(pruning, list(amounts))
    for part, count in amounts.items():
        if not pruning.has_target:
            _check_rounding(part, [units.count for units in units_of(model, part)], count, pruning)
    return amounts


def _check_rounding(part: Part, present: Sequence[int], count: int, pruning: Pruning) -> None:
    """Refuse a count of which rounding leaves nothing; how much it leaves of a first masking hangs on no score."""
    masks, scores = [torch.ones(units) for units in present], torch.zeros(len(present), max(present))

    def takes_any(number: int) -> bool:
        return not all(bool(row.all()) for row in mask_least_important(masks, scores, number, part, pruning))

    if not takes_any(count):
        most = sum(units - kept_at_least(part, pruning) for units in present)
        numbers = range(count + 1, most + 1)
        least = first_that(numbers, takes_any)
        raise CompressError(
            f"{OPTIONS[part]} {count} of {sum(present)} {part} would remove none: "
            + ("all layers come down to one width" if pruning.scope == "layer" else "widths are rounded")
            + (f", in multiples of {pruning.multiple}" if part == "neurons" else "")
            + ("" if least is None else f"; ask for {numbers[least]} or more")
        )


def _can_give(model: PreTrainedModel, part: Part, pruning: Pruning) -> bool:
    keep = kept_at_least(part, pruning)
    return has_units(model, part) and any(units.count > keep for units in units_of(model, part))


def announced_amounts(model: PreTrainedModel, pruning: Pruning) -> dict[Part, int]:
    """Return the amounts of :func:`amounts_of` and say them."""
    amounts = amounts_of(model, pruning)
    for part, count in amounts.items():
        there = sum(units.count for units in units_of(model, part))
        most = "up to " if pruning.has_target else ""
        logger.info("removing %s%d of %d %s, %d stay", most, count, there, part, there - count)
    return amounts


def choose_layers_to_remove(model: PreTrainedModel, batches: Sequence[Batch], pruning: Pruning) -> list[dict[str, Any]]:
    """Return the layers that go, one after the other, with the loss without them, as JSON values."""
    from compress.pruning.layer_and_width_scores import choose_layers

    return [asdict(step) for step in choose_layers(model, batches, layers_to_remove(model, pruning))]


def choose_positions(model: PreTrainedModel, batches: Sequence[Batch], pruning: Pruning) -> list[int]:
    """Return the positions of the hidden width that matter least."""
    from compress.pruning.layer_and_width_scores import hidden_importance

    scores = hidden_importance(model, batches)
    return sorted(scores.argsort(stable=True)[: positions_to_remove(model, pruning)].tolist())


def layers_to_remove(model: PreTrainedModel, pruning: Pruning) -> int:
    """Return how many layers go.

    Raises:
        CompressError: an amount that the model cannot give.
    """
    from compress.models.modeling.families import layers_of
    from compress.surgery.remove_layers import removable_layers

    removable = len(removable_layers(model))  # refuses a family that it does not know
    there = len(layers_of(model))
    return units_to_remove("--layers", pruning.layers, [there], "layers", keep=max(1, there - removable))


def positions_to_remove(model: PreTrainedModel, pruning: Pruning) -> int:
    """Return how many positions of the hidden width go: the multiple of a head's width that is nearest to the amount.

    Raises:
        CompressError: an amount that the model cannot give.
    """
    size = head_size_of(model.config)
    width = int(model.config.hidden_size)
    asked = units_to_remove("--hidden", pruning.hidden, [width], "hidden dimensions", keep=size)
    if 2 * asked < size:
        raise CompressError(
            f"--hidden {pruning.hidden} of {width} hidden dimensions would remove none: they go in widths of a head, "
            f"multiples of {size}; ask for {-(-size // 2)} or more"
        )
    return min(math.floor(asked / size + 0.5) * size, width - size)


def choose_units(
    batches: Sequence[Batch],
    judge: Evaluations,
    reference: np.ndarray,
    pruning: Pruning,
    speedup_of: Callable[[Masks], Ratio],
    *,
    seed: int,
    values: Values,
    progress: Progress,
) -> dict[str, Any]:
    """Follow the path of the criterion and say where to stop: masks, first scores and judged points, as JSON values.

    Args:
        judge: evaluates the model from which units go; ``reference`` is what the whole model predicts of its rows.
        speedup_of: measures how fast the model is without the masked heads and neurons.
        values: what a criterion of many evaluations knows already.

    Raises:
        CompressError: a target that no step of the path reaches, or an amount that cannot be.
    """
    model = judge.model
    amounts = announced_amounts(model, pruning)
    weights = {part: [_weights(units) for units in units_of(model, part)] for part in amounts}
    steps = [Step(unmasked(model, list(amounts)), {})]
    curve = [_point(steps[0], weights, judge, reference)]
    if _drops_too_much(curve[0], pruning) and curve[0]["points"]:
        raise CompressError(
            f"--max-accuracy-drop {pruning.max_accuracy_drop:g} is broken before any head or neuron goes: the layers "
            f"or word pieces that are gone cost {_said(curve[0])}; remove fewer of them, or allow more"
        )
    with progress("Removing heads and neurons", sum(amounts.values())) as advance:
        for step in removal_path(model, batches, amounts, pruning, seed=seed, values=values):
            steps.append(step)
            curve.append(_point(step, weights, judge, reference))
            advance(sum(step.removed.values()) - sum(steps[-2].removed.values()))
            if _drops_too_much(curve[-1], pruning):
                break
    if _drops_too_much(curve[1], pruning):
        raise CompressError(
            f"--max-accuracy-drop {pruning.max_accuracy_drop:g} allows nothing: the first step is {_said(curve[1])}; "
            "allow more, take smaller steps with --step, or give more validation rows, which narrow the interval"
        )
    reached: dict[str, Any] = {}
    position = len(steps) - 1 - _drops_too_much(curve[-1], pruning)
    if pruning.speedup:
        position, ratio = _fast_enough(steps, pruning, speedup_of)
        reached = {"target": {"asked": pruning.speedup, "batch_size": pruning.speedup_batch_size, **asdict(ratio)}}
    curve[position]["chosen"] = True
    return {
        "masks": {part: [row.int().tolist() for row in rows] for part, rows in steps[position].masks.items()},
        "importance": {part: scores.tolist() for part, scores in steps[1].scores.items()},
        "curve": curve,
        **reached,
    }


def _said(point: Mapping[str, Any]) -> str:
    return (
        f"{point['points']:+.2f} points ({point['low']:+.2f} to {point['high']:+.2f}) on {point['rows']:,} rows of "
        f"{point['split']}"
    )


def _drops_too_much(point: Mapping[str, Any], pruning: Pruning) -> bool:
    return bool(pruning.max_accuracy_drop and point["low"] < -pruning.max_accuracy_drop)


def _fast_enough(steps: Sequence[Step], pruning: Pruning, speedup_of: Callable[[Masks], Ratio]) -> tuple[int, Ratio]:
    """Return the position of the first step at which the model is as fast as it shall be, and how fast that is."""
    measured: dict[int, Ratio] = {}

    def reaches(number: int) -> bool:
        measured[number] = ratio = speedup_of(steps[number].masks)
        gone = " and ".join(f"{count} {part}" for part, count in steps[number].removed.items())
        logger.info("without %s: x%.2f (%.2f to %.2f)", gone, ratio.value, ratio.low, ratio.high)
        return measured[number].value >= pruning.speedup

    position = first_that(range(len(steps)), reaches)
    if position is None:
        best = max(measured.values(), key=lambda ratio: ratio.value)
        raise CompressError(
            f"--speedup {pruning.speedup:g} is out of reach: without all heads and neurons that may go the model is "
            f"x{best.value:.2f} ({best.low:.2f} to {best.high:.2f}) as fast here at batch size "
            f"{pruning.speedup_batch_size}; add --layers, or ask for less"
        )
    return position, measured[position]


def _point(
    step: Step, weights: Mapping[Part, Sequence[int]], judge: Evaluations, reference: np.ndarray
) -> dict[str, Any]:
    """Return a point of the curve: what is masked, and what that costs against the whole model."""
    found = judge.against(reference, step.masks)
    masked = [
        (weight * int((row == 0).sum()), weight * len(row))
        for part, rows in step.masks.items()
        for weight, row in zip(weights[part], rows, strict=True)
    ]
    counts: dict[str, int] = {}
    for part, rows in step.masks.items():
        counts[f"{part}_removed"] = step.removed[part]
        counts[f"{part}_kept"] = sum(map(len, rows)) - step.removed[part]
    return {
        **counts,
        "share_removed": round(sum(gone for gone, _ in masked) / sum(there for _, there in masked), 4),
        "metric": judge.rows.metric.name,
        "value": judge.value(step.masks),
        "points": found.points,
        "low": found.low,
        "high": found.high,
        "split": judge.rows.split,
        "rows": len(judge.rows.gold.examples),
        "recovered": False,
        "chosen": False,
    }


def _weights(units: Any) -> int:
    """Return how many weights one head, or neuron, of a layer owns."""
    linears = (*units.rows, units.columns)
    owned = sum(linear.weight.numel() for linear in linears) + sum(
        linear.bias.numel() for linear in units.rows if linear.bias is not None
    )
    return int(owned // units.count)
