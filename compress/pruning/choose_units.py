"""Plan a pruning and choose heads and neurons: mask the least important, step by step, until a target is met."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress import plugins
from compress.errors import CompressError, refuse
from compress.inference.speedup_intervals import Interval
from compress.models.batch import Batch
from compress.models.components import Part, has_heads, has_units, units_of
from compress.models.modeling.families import head_size_of, layers_of
from compress.progress import logger
from compress.pruning.evaluation import MaskedEvaluation
from compress.pruning.scoring import Measure, Values
from compress.recipes import Pruning
from compress.recipes.pruning import MOST, units_to_remove
from compress.requests.compression import Prune
from compress.surgery.remove import members, removable_layers, remove_hidden, remove_layers
from compress.surgery.unit_masks import Masks, mask_lowest, masked, normalised, unmasked

MEASURE: Measure = "loss"
OPTIONS: Mapping[Part, str] = {"heads": "--heads", "neurons": "--ffn"}


@dataclass(frozen=True)
class PruningPlan:
    """What to remove from one model, as far as it is known before anything is scored.

    Args:
        layers: number of layers to remove.
        units: number of heads and neurons to remove, by part; with a target at most so many. Where layers that are
            removed before have unequal numbers of them, :func:`plan_units` tells the final numbers.
        hidden: number of positions of the hidden size to remove.
    """

    layers: int
    units: Mapping[Part, int]
    hidden: int


def plan_pruning(model: PreTrainedModel, config: Pruning, *, vocabulary: bool = False) -> PruningPlan:
    """Return what to remove from a model, with a ``vocabulary`` or not, having tried the removals on a copy.

    The layers to remove are not chosen yet; the first removable ones stand for them.

    Raises:
        CompressError: nothing to remove, or a model from which it cannot be removed.
    """
    # Without dropout student and teacher are equal at first: the first units would be chosen by rounding errors.
    dropout = any(module.p > 0 for module in model.modules() if isinstance(module, nn.Dropout))
    refuse(
        (
            not (config.removes_units or config.layers or config.hidden or vocabulary),
            "nothing to remove; say what with --heads 60%, --ffn 40%, --layers 2, --hidden 25% or --vocabulary FILE, "
            "or how far to go with --max-accuracy-drop 1.0 or --speedup 1.5",
        ),
        (
            config.recovery == "relations" and not has_heads(model),
            f"--recovery relations reads queries, keys and values, which compress does not know where to find in a "
            f"{model.config.model_type!r} model; use --recovery logits or hidden",
        ),
        (
            config.schedule == "cubic" and not config.layers and not dropout,
            "--schedule cubic masks units by the gradients of its training, which begin at zero for a model without "
            "dropout such as this one; use --schedule steps, or remove --layers too",
        ),
    )
    smaller, layers, hidden = deepcopy(model), 0, 0
    if config.layers:
        removable, present = removable_layers(model), len(layers_of(model))
        least = max(1, present - len(removable))
        layers = units_to_remove("--layers", config.layers, [present], "layers", keep=least)
        remove_layers(smaller, removable[:layers])
    units = plan_units(smaller, config) if config.removes_units else {}
    if config.hidden:
        members(model)  # raises for a family that cannot be made narrower
        size, width = head_size_of(model.config), int(model.config.hidden_size)
        asked = units_to_remove("--hidden", config.hidden, [width], "hidden dimensions", keep=size)
        refuse(
            (
                2 * asked < size,
                f"--hidden {config.hidden} of {width} hidden dimensions would remove none: they go in widths of a "
                f"head, multiples of {size}; ask for {-(-size // 2)} or more",
            )
        )
        hidden = min(math.floor(asked / size + 0.5) * size, width - size)  # the multiple that is nearest to the amount
        remove_hidden(smaller, range(hidden))
    return PruningPlan(layers, units, hidden)


def plan_units(model: PreTrainedModel, config: Pruning) -> dict[Part, int]:
    """Return how many heads and neurons to remove. A target without amounts may remove as many as possible.

    Raises:
        CompressError: an amount that the model cannot give, or a criterion that does not score a part.
    """
    asked: dict[Part, str] = {"heads": config.heads, "neurons": config.ffn}
    if config.has_target and not any(asked.values()):
        asked = {
            part: MOST
            for part in asked
            if has_units(model, part) and any(units.count > config.kept(part) for units in units_of(model, part))
        }
        refuse((not asked, "every layer of this model has as few heads and neurons as it keeps; remove --layers"))
    present = {part: [units.count for units in units_of(model, part)] for part, amount in asked.items() if amount}
    amounts = {
        part: units_to_remove(OPTIONS[part], asked[part], counts, part, keep=config.kept(part))
        for part, counts in present.items()
    }
    able = [name for name in plugins.names("criteria") if "part" in plugins.find("criteria", name).parameters]
    refuse(
        (
            "neurons" in amounts and config.criterion.replace("_", "-") not in able,
            f"--criterion {config.criterion} scores heads only, and neurons of feed-forward networks are to be removed "
            f"too; use {', '.join(able)}, or remove heads only with --heads",
        )
    )
    if not config.has_target:
        for part, count in amounts.items():
            _check_rounding(part, present[part], count, config)
    return amounts


def _check_rounding(part: Part, present: Sequence[int], count: int, config: Pruning) -> None:
    """Raise an error for a count that rounding turns into zero, which does not depend on the scores."""
    masks, scores = [torch.ones(units) for units in present], torch.zeros(len(present), max(present))

    def removes_any(number: int) -> bool:
        return not all(bool(row.all()) for row in mask_least_important(masks, scores, number, part, config))

    if removes_any(count):
        return
    numbers = range(count + 1, sum(units - config.kept(part) for units in present) + 1)
    least = bisect_left(numbers, True, key=removes_any)
    raise CompressError(
        f"{OPTIONS[part]} {count} of {sum(present)} {part} would remove none: "
        + ("all layers come down to one width" if config.scope == "layer" else "widths are rounded")
        + (f", in multiples of {config.multiple}" if part == "neurons" else "")
        + (f"; ask for {numbers[least]} or more" if least < len(numbers) else "")
    )


@dataclass(frozen=True)
class PathStep:
    """Masks of heads and neurons, and the scores ``[L, U]`` by part that the last ones were chosen by."""

    masks: Masks
    scores: Mapping[Part, Tensor]

    @property
    def removed(self) -> dict[Part, int]:
        return {part: int(sum((row == 0).sum() for row in rows)) for part, rows in self.masks.items()}


def removal_path(
    model: PreTrainedModel,
    counts: Mapping[Part, int],
    pruning: Pruning,
    score: Callable[[Masks], Mapping[Part, Tensor]],
) -> Iterator[PathStep]:
    """Yield the whole model, and steps that mask at most a share ``pruning.step`` of the heads and of the neurons.

    Args:
        counts: how many heads and neurons are masked in the end.
        score: returns the scores ``[L, U]`` of each part with these masks.
    """
    yield (step := PathStep(unmasked(model, list(counts)), {}))
    sizes = {part: max(1, round(pruning.step * sum(map(len, step.masks[part])))) for part in counts}
    for number in range(1, 1 + max(-(-count // sizes[part]) for part, count in counts.items())):
        scores = score(step.masks) if pruning.recompute or not step.scores else step.scores
        due = {part: min(count, number * sizes[part]) - step.removed[part] for part, count in counts.items()}
        masks = {
            part: mask_least_important(rows, scores[part], max(0, due[part]), part, pruning)
            for part, rows in step.masks.items()
        }
        step = PathStep(masks, dict(scores))
        yield step


def mask_least_important(
    rows: Sequence[Tensor], scores: Tensor, count: int, part: Part, pruning: Pruning
) -> Sequence[Tensor]:
    """Return the masks of a part with about ``count`` more units masked: the least important ones."""
    return mask_lowest(
        normalised(scores) if pruning.normalise else scores,
        rows,
        count,
        by_layer=pruning.scope == "layer",
        keep=pruning.kept(part),
        multiple=1 if part == "heads" else pruning.multiple,
    )


def score_units(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    masks: Masks,
    part: Part,
    criterion: str,
    *,
    seed: int,
    values: Values | None = None,
) -> Tensor:
    """Return the scores ``[L, U]`` of one part with the masks of all parts applied.

    A criterion that compares evaluations compares losses: one head changes hardly any prediction on rows that the model
    was fitted on, so that many accuracies would be equal. ``values`` are known evaluations with no other part masked.
    """
    plugin = plugins.find("criteria", criterion)
    known = {"seed": seed, "measure": MEASURE, "part": part, "values": values}
    options: dict[str, Any] = {name: value for name, value in known.items() if name in plugin.parameters}
    with masked(model, {other: rows for other, rows in masks.items() if other != part}):
        found: Tensor = plugin.function(model, batches, masks[part], **options)
    return found


def choose_units(
    evaluation: MaskedEvaluation,
    batches: Sequence[Batch],
    amounts: Mapping[Part, int],
    config: Prune,
    speedup_of: Callable[[Masks], Interval],
    values: Values,
) -> dict[str, Any]:
    """Follow the removal path until the target is met; return masks, first scores and evaluated points as JSON values.

    Args:
        evaluation: evaluates the model to prune against the predictions of the unpruned one.
        speedup_of: measures the speed-up of the model without masked heads and neurons.
        values: known evaluations, for a criterion that compares many.

    Raises:
        CompressError: no step of the path meets the target.
    """
    model, limit = evaluation.model, config.max_accuracy_drop
    weights = {
        part: [
            (sum(p.numel() for linear in units.rows for p in linear.parameters()) + units.columns.weight.numel())
            // units.count
            for units in units_of(model, part)
        ]
        for part in amounts
    }
    steps: list[PathStep] = []
    curve: list[dict[str, Any]] = []
    too_far = False

    def score(masks: Masks) -> dict[Part, Tensor]:
        return {
            part: score_units(model, batches, masks, part, config.criterion, seed=config.seed, values=values)
            for part in amounts
        }

    with config.progress("Removing heads and neurons", sum(amounts.values())) as advance:
        for step in removal_path(model, amounts, config, score):
            advance(sum(step.removed.values()) - (sum(steps[-1].removed.values()) if steps else 0))
            steps.append(step)
            curve.append(_point(step, weights, evaluation))
            too_far = bool(limit and curve[-1]["low"] < -limit)
            if too_far and (len(steps) > 1 or curve[0]["points"]):
                break
    if too_far and len(steps) <= 2:
        point = curve[-1]
        drop = (
            f"{point['points']:+.2f} points ({point['low']:+.2f} to {point['high']:+.2f}) on {point['rows']:,} rows of "
            f"{point['split']}"
        )
        raise CompressError(
            f"--max-accuracy-drop {limit:g} is broken before any head or neuron is removed: the layers or subword "
            f"tokens removed before cost {drop}; remove fewer of them, or allow more"
            if len(steps) == 1
            else f"--max-accuracy-drop {limit:g} allows nothing: the first step is {drop}; allow more, take smaller "
            "steps with --step, or give more validation rows, which narrow the interval"
        )
    reached: dict[str, Any] = {}
    position = len(steps) - 1 - too_far
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


def _fast_enough(
    steps: Sequence[PathStep], config: Pruning, speedup_of: Callable[[Masks], Interval]
) -> tuple[int, Interval]:
    """Return the position of the first step that reaches the speed-up, and its measured speed-up.

    By bisection, because a step takes seconds to measure: steps after one that reaches it are taken to reach it too.
    """
    measured: dict[int, Interval] = {}

    def reaches(number: int) -> bool:
        measured[number] = ratio = speedup_of(steps[number].masks)
        removed = " and ".join(f"{count} {part}" for part, count in steps[number].removed.items())
        logger.info("without %s: x%.2f (%.2f to %.2f)", removed, ratio.value, ratio.low, ratio.high)
        return ratio.value >= (config.speedup or 0)

    position = bisect_left(range(len(steps)), True, key=reaches)
    if position == len(steps):
        best = max(measured.values(), key=lambda ratio: ratio.value)
        raise CompressError(
            f"--speedup {config.speedup:g} is out of reach: without all heads and neurons that may be removed the "
            f"model is x{best.value:.2f} ({best.low:.2f} to {best.high:.2f}) as fast here at batch size "
            f"{config.speedup_batch_size}; add --layers, or ask for less"
        )
    return position, measured[position]


def _point(step: PathStep, weights: Mapping[Part, Sequence[int]], evaluation: MaskedEvaluation) -> dict[str, Any]:
    """Return a point of the pruning curve: numbers of removed heads and neurons, and the metric without them.

    ``weights`` are those that one head, or neuron, of each layer owns.
    """
    rows = evaluation.rows
    counts: dict[str, int] = {}
    for part, removed in step.removed.items():
        counts |= {f"{part}_removed": removed, f"{part}_kept": sum(map(len, step.masks[part])) - removed}
    pairs = [pair for part, masks in step.masks.items() for pair in zip(weights[part], masks, strict=True)]
    masked_weights = sum(weight * int((mask == 0).sum()) for weight, mask in pairs)
    return {
        **counts,
        "share_removed": round(masked_weights / sum(weight * len(mask) for weight, mask in pairs), 4),
        "metric": rows.metric.name,
        **evaluation.effect(step.masks),
        "split": rows.split,
        "rows": len(rows.gold.examples),
        "recovered": False,
        "chosen": False,
    }
