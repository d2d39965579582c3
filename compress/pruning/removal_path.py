"""Removal path: rank heads and neurons by importance and mask the lowest, step by step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from compress import plugins
from compress.errors import CompressError
from compress.models.batch import Batch
from compress.models.prunable_units import Part
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


def check_criterion(pruning: Pruning, parts: Sequence[Part]) -> None:
    """Raise an error for an unknown criterion, or one that does not score a part."""
    plugin = plugins.find("criteria", pruning.criterion)
    if "neurons" in parts and "part" not in plugin.parameters:
        able = [name for name in plugins.names("criteria") if "part" in plugins.find("criteria", name).parameters]
        raise CompressError(
            f"--criterion {pruning.criterion} scores heads only, and neurons of feed-forward networks shall go too; "
            f"use {', '.join(able)}, or let only heads go with --heads"
        )


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
        counts: how many heads and neurons are masked in the end. A part that has reached its count waits.
        fixed: scores to use instead of the criterion's.
        values: known evaluations for a criterion that compares many; such a criterion scores heads only.

    Raises:
        CompressError: the criterion does not score one of the parts.
    """
    check_criterion(pruning, list(counts))
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
    was fitted on, so that accuracies would tie. ``values`` are known evaluations with no other part masked.
    """
    plugin = plugins.find("criteria", criterion)
    known = {"seed": seed, "measure": MEASURE, "part": part, "values": values}
    options: dict[str, Any] = {name: value for name, value in known.items() if name in plugin.parameters}
    with masked(model, {other: rows for other, rows in masks.items() if other != part}):
        found: Tensor = plugin.function(model, batches, masks[part], **options)
    return found


def first_that(steps: Sequence[Any], reaches: Callable[[Any], bool]) -> int | None:
    """Return the position of the first step that reaches a target, by bisection; None if none does.

    Steps after one that reaches the target must reach it too. Bisection, because a step may take seconds to measure.
    """
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if reaches(steps[middle]):
            high = middle
        else:
            low = middle + 1
    return low if low < len(steps) else None
