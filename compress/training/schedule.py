"""Divide training steps among phases and, where a phase trains layer by layer, among the student's layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compress.errors import CompressError
from compress.recipes import Phase, Training

# The order of rows follows from seed and epoch: step ranges with the seed of the first one would all read its first
# rows and mask the same tokens, and a recipe of many would see little of the text.
SEEDS_APART = 10_000


@dataclass(frozen=True)
class StepRange:
    """Consecutive training steps with the same losses and the same frozen parameters.

    ``trained_layers`` are the layers, counted from 1, that losses read (None: all). The lowest ``frozen_layers`` layers
    are frozen, and the embeddings with the first of them.
    """

    name: str
    phase: Phase
    steps: int
    trained_layers: tuple[int, ...] | None = None
    frozen_layers: int = 0


def steps_for(rows: int, training: Training) -> int:
    """Return the number of optimiser steps for so many rows: ``epochs`` passes, capped by ``max_steps``."""
    steps = max(1, math.ceil(training.epochs * rows / training.batch_size))
    return min(steps, training.max_steps) if training.max_steps else steps


def step_ranges(phases: Sequence[Phase], layers: int, steps: int) -> list[StepRange]:
    """Divide the steps among phases by their shares, and a phase with ``by_layer`` among the student's layers.

    Every range gets at least one step, so that very few steps may become a few more.

    Raises:
        CompressError: a phase trains by layer and the student has none.
    """
    planned = []
    for number, (phase, part) in enumerate(zip(phases, divide(steps, [p.share for p in phases]), strict=True), 1):
        name = f"phase-{number}" + (f"-{phase.name}" if phase.name else "")
        if not phase.by_layer:
            planned.append(StepRange(name, phase, part))
            continue
        if not layers:
            raise CompressError(f"{name} trains layer after layer, and this student has no layers that compress knows")
        for layer, steps_here in enumerate(divide(part, [1.0] * layers), 1):
            first, frozen = (layer, layer - 1) if phase.by_layer == "progressive" else (1, 0)
            trained = tuple(range(first, layer + 1))
            planned.append(StepRange(f"{name}-layer-{layer}", phase, steps_here, trained, frozen))
    return planned


def divide(steps: int, shares: Sequence[float]) -> list[int]:
    """Return whole parts of at least 1 that add up to ``steps`` (or to one each) in proportion to the shares."""
    ends = [round(steps * sum(shares[: i + 1]) / sum(shares)) for i in range(len(shares))]
    return [max(1, end - start) for start, end in zip([0, *ends], ends, strict=False)]
