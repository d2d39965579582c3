"""The path along which heads and neurons go, step by step, and how far along it a target lets us."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compress import plugins
from compress.errors import CompressError
from compress.models.prunable_units import Part
from compress.pruning.scoring import Measure, Values
from compress.recipes import Pruning
from compress.surgery.unit_masks import Masks, masked, unmasked
from compress.surgery.unit_selection import mask_lowest, normalised

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from compress.models.batch import Batch


MEASURE: Measure = "loss"


@dataclass(frozen=True)
class Step:
    """A point of the path: the masks there, and the scores ``[L, U]`` by part that chose its last masking."""

    masks: Masks
    scores: Mapping[Part, Tensor]

    @property
    def removed(self) -> dict[Part, int]:
        """How many units are masked."""
        return {part: int(sum((row == 0).sum() for row in rows)) for part, rows in self.masks.items()}


def check_criterion(pruning: Pruning, parts: Sequence[Part]) -> None:
    """Refuse a criterion that is not there, or that does not score a part."""
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
) -> Iterator[Step]:
    """Yield the points of the path, at each of which a share ``step`` of the units of every part is gone, at most.

    Args:
        counts: how many heads and neurons go in all. A part that is through waits for the others.
        fixed: scores to use instead of computing any.
        values: what a criterion of many evaluations, which scores heads alone, knows already.

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
        now = Step(masks, scores).removed
        if not fixed and (not scores or pruning.recompute):
            scores = {
                part: score(model, batches, masks, part, pruning.criterion, seed=seed, values=values) for part in counts
            }
        masks = {
            part: mask_least_important(rows, scores[part], max(0, due[part] - now[part]), part, pruning)
            for part, rows in masks.items()
        }
        yield Step(masks, dict(scores))


def mask_least_important(
    rows: Sequence[Tensor], scores: Tensor, count: int, part: Part, pruning: Pruning
) -> Sequence[Tensor]:
    """Return the masks of a part with about ``count`` more units masked, as the pruning says."""
    return mask_lowest(
        normalised(scores) if pruning.normalise else scores,
        rows,
        count,
        by_layer=pruning.scope == "layer",
        keep=kept_at_least(part, pruning),
        multiple=1 if part == "heads" else pruning.multiple,
    )


def kept_at_least(part: Part, pruning: Pruning) -> int:
    """Return how many heads, or neurons, every layer keeps."""
    return pruning.keep_heads if part == "heads" else pruning.multiple


def score(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    masks: Masks,
    part: Part,
    criterion: str,
    *,
    seed: int,
    values: Values | None = None,
) -> Tensor:
    """Return the scores ``[L, U]`` of one part while the masked units of every part are masked.

    A criterion that compares evaluations compares losses: hardly an answer on rows that the model was fitted on changes
    with one unit, so that right answers would leave most units in the order in which they lie. ``values`` are those
    that are known already, with no other part masked.
    """
    plugin = plugins.find("criteria", criterion)
    known = {"seed": seed, "measure": MEASURE, "part": part, "values": values}
    options: dict[str, Any] = {name: value for name, value in known.items() if name in plugin.parameters}
    with masked(model, {other: rows for other, rows in masks.items() if other != part}):
        found: Tensor = plugin.function(model, batches, masks[part], **options)
    return found


def first_that(steps: Sequence[Any], reaches: Callable[[Any], bool]) -> int | None:
    """Return the position of the first step that reaches a target that later steps reach too; None if none does.

    Halves what is left at each question, since an answer may take seconds of measuring.
    """
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if reaches(steps[middle]):
            high = middle
        else:
            low = middle + 1
    return low if low < len(steps) else None
