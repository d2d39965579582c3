"""Choose the heads and neurons to remove: mask the least important, step by step, until a target is met."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from compress import plugins
from compress.errors import CompressError
from compress.inference.speedup_intervals import Interval
from compress.models.batch import Batch
from compress.models.prunable_units import Part, Units, units_of
from compress.progress import Progress, logger
from compress.pruning.evaluation import MaskedEvaluation
from compress.pruning.scoring import Measure, Values
from compress.recipes import Pruning
from compress.surgery.unit_masks import Masks, mask_lowest, masked, normalised, unmasked

MEASURE: Measure = "loss"


@dataclass(frozen=True)
class PathStep:
    """Masks of heads and neurons, and the scores ``[L, U]`` by part that the last ones were chosen by."""

    masks: Masks
    scores: Mapping[Part, Tensor]

    @property
    def removed(self) -> dict[Part, int]:
        """How many heads and neurons are masked."""
        return {part: int(sum((row == 0).sum() for row in rows)) for part, rows in self.masks.items()}


def removal_path(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    counts: Mapping[Part, int],
    pruning: Pruning,
    *,
    seed: int = 0,
    fixed: Mapping[Part, Tensor] | None = None,
    values: Values | None = None,
) -> Iterator[PathStep]:
    """Yield steps, each of which masks at most a share ``pruning.step`` of the heads and of the neurons.

    Args:
        counts: how many heads and neurons are masked in the end.
        fixed: scores to use instead of the criterion's.
        values: known evaluations for a criterion that compares many; such a criterion scores heads only.
    """
    masks: Masks = unmasked(model, list(counts))
    sizes = {part: max(1, round(pruning.step * sum(map(len, masks[part])))) for part in counts}
    steps = max(-(-count // sizes[part]) for part, count in counts.items())
    scores = dict(fixed or {})
    for number in range(1, steps + 1):
        due = {part: min(count, number * sizes[part]) for part, count in counts.items()}
        now = PathStep(masks, scores).removed
        if not fixed and (not scores or pruning.recompute):
            scores = {
                part: score_units(model, batches, masks, part, pruning.criterion, seed=seed, values=values)
                for part in counts
            }
        masks = {
            part: mask_least_important(rows, scores[part], max(0, due[part] - now[part]), part, pruning)
            for part, rows in masks.items()
        }
        yield PathStep(masks, dict(scores))


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
        values: known evaluations, for a criterion that compares many.

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
            f"--max-accuracy-drop {limit:g} is broken before any head or neuron is removed: the layers or subword "
            f"tokens removed before cost {_described(curve[0])}; remove fewer of them, or allow more"
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
    """Return the position of the first step that reaches the speed-up, and its measured speed-up.

    By bisection, because a step takes seconds to measure: steps after one that reaches it are taken to reach it too.
    """
    measured: dict[int, Interval] = {}

    def reaches(number: int) -> bool:
        measured[number] = ratio = speedup_of(steps[number].masks)
        removed = " and ".join(f"{count} {part}" for part, count in steps[number].removed.items())
        logger.info("without %s: x%.2f (%.2f to %.2f)", removed, ratio.value, ratio.low, ratio.high)
        return ratio.value >= config.speedup

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
    """Return a point of the pruning curve: numbers of removed heads and neurons, and the metric without them."""
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


def _weights(units: Units) -> int:
    """Return how many weights one head, or neuron, of a layer owns."""
    owned = sum(parameter.numel() for linear in units.rows for parameter in linear.parameters())
    return (owned + units.columns.weight.numel()) // units.count
