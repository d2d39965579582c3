"""A student's training as a row of stretches: its phases, and the layers one after the other where a phase says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compress.errors import CompressError
from compress.recipes import Phase

# The order of rows follows from seed and epoch: stretches with the seed of the first one would all read its first rows
# and hide the same tokens, and a recipe of many would see little of the text.
SEEDS_APART = 10_000


@dataclass(frozen=True)
class Stretch:
    """Steps during which nothing changes but the weights.

    ``taught`` are the layers, counted from 1, that losses may teach (None: all); of the lowest layers ``resting`` do
    not learn, and the embeddings rest with the first of them.
    """

    name: str
    phase: Phase
    steps: int
    taught: tuple[int, ...] | None = None
    resting: int = 0


def stretches(phases: Sequence[Phase], layers: int, steps: int) -> list[Stretch]:
    """Divide the steps among phases by their shares, and a phase that goes by layer among the student's layers.

    Every stretch gets at least one step, so that very few steps may become a few more.

    Raises:
        CompressError: a phase goes by layer and the student has none.
    """
    planned = []
    for number, (phase, part) in enumerate(zip(phases, divide(steps, [p.share for p in phases]), strict=True), 1):
        name = f"phase-{number}" + (f"-{phase.name}" if phase.name else "")
        if not phase.by_layer:
            planned.append(Stretch(name, phase, part))
            continue
        if not layers:
            raise CompressError(f"{name} teaches layer after layer, and this student has no layers that compress knows")
        for layer, steps_here in enumerate(divide(part, [1.0] * layers), 1):
            progressive = phase.by_layer == "progressive"
            taught = (layer,) if progressive else tuple(range(1, layer + 1))
            resting = layer - 1 if progressive else 0
            planned.append(Stretch(f"{name}-layer-{layer}", phase, steps_here, taught, resting))
    return planned


def divide(steps: int, shares: Sequence[float]) -> list[int]:
    """Return whole parts of at least 1 that add up to ``steps`` (or to one each) in proportion to the shares."""
    ends = [round(steps * sum(shares[: i + 1]) / sum(shares)) for i in range(len(shares))]
    return [max(1, end - start) for start, end in zip([0, *ends], ends, strict=False)]
