"""Plan how many optimiser steps a training takes, how often it is evaluated, and which phase has which steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compress.errors import CompressError
from compress.recipes import Phase, Training

EVALUATION_SHARE = 0.25  # of the work of all training steps, that the evaluations take at most
EVALUATED_AT_LEAST = 3
LENGTH_ROWS = 2000  # of the training rows, spread evenly, whose tokens are counted
LEAST_LENGTH, LENGTH_STEP = 128, 32
LENGTH_PERCENTILE, LENGTH_COST = 99, 4
_MOST_STEPS = 2**31 - 1
_PASSES_A_STEP = 3  # the work of a training step as forward passes: backwards is two


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
    """Return the number of optimiser steps for so many rows.

    ``epochs`` passes, or for few rows ``min_steps`` steps in at most ``max_epochs`` passes; at most ``max_steps``.
    """
    few = min(training.min_steps, _steps(training.max_epochs, rows, training))
    steps = max(1, _steps(training.epochs, rows, training), few)
    steps = min(steps, training.max_steps or steps)
    if steps > _MOST_STEPS:
        raise CompressError(
            f"epochs = {training.epochs:g} with {rows:,} rows are {steps:.3g} steps, and at most {_MOST_STEPS:,} can "
            "be counted: set fewer, or max_steps"
        )
    return steps


def _steps(epochs: float, rows: int, training: Training) -> int:
    return math.ceil(epochs * max(1.0, rows / training.batch_size))  # fewer rows than a batch are a step all the same


def evaluations_for(steps: int, training: Training, rows: int) -> int:
    """Return how often so many rows are evaluated in so many steps.

    ``evaluations`` times, or as often as takes a quarter of the work of the steps, but three times at least.
    """
    affordable = EVALUATION_SHARE * steps * training.batch_size * _PASSES_A_STEP / max(rows, 1)
    return min(training.evaluations, steps, max(EVALUATED_AT_LEAST, int(affordable)))


def length_for(tokens: Sequence[int], limit: int) -> int:
    """Return the number of tokens that texts are cut to in training, by the tokens of some rows.

    The 99th percentile, rounded up to a multiple of 32: what is cut of one row in a hundred is lost, and padding to the
    longest row is not paid for. It is 128 at least, which costs nothing where rows are shorter, and at most what the
    model reads. The rows have at most four times the tokens that they would have if they were cut to 128: a step on
    documents may take four times as long.

    Args:
        tokens: of each row, special tokens included.
        limit: how many the model reads.
    """
    counts = np.asarray(tokens)
    affordable = LENGTH_COST * np.minimum(counts, LEAST_LENGTH).sum()
    length = max(LEAST_LENGTH, LENGTH_STEP * math.ceil(np.percentile(counts, LENGTH_PERCENTILE) / LENGTH_STEP))
    while length > LEAST_LENGTH and np.minimum(counts, length).sum() > affordable:
        length -= LENGTH_STEP
    return int(min(length, limit))


def described(steps: int, rows: int, training: Training) -> str:
    passes = steps / max(1, math.ceil(rows / training.batch_size))  # the last batch of a pass has what rows are left
    said = (
        f"{steps:,} step{'s' * (steps != 1)} of {min(training.batch_size, max(rows, 1))} rows, "
        f"{passes:.3g} pass{'es' * (f'{passes:.3g}' != '1')} over {rows:,}"
    )
    if steps == training.max_steps:
        return f"{said} (max_steps = {training.max_steps})"
    if steps == _steps(training.epochs, rows, training):
        return f"{said} (epochs = {training.epochs:g})"
    capped = "" if steps == training.min_steps else f", max_epochs = {training.max_epochs:g}"
    return f"{said} (few rows: min_steps = {training.min_steps}{capped})"


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
            planned.append(
                StepRange(f"{name}-layer-{layer}", phase, steps_here, tuple(range(first, layer + 1)), frozen)
            )
    return planned


def divide(steps: int, shares: Sequence[float]) -> list[int]:
    """Return whole parts of at least 1 that add up to ``steps`` (or to one each) in proportion to the shares."""
    ends = [round(steps * sum(shares[: i + 1]) / sum(shares)) for i in range(len(shares))]
    return [max(1, end - start) for start, end in zip([0, *ends], ends, strict=False)]
