"""Successive halving: many students are trained for few steps, and the best third of them for three times as many.

Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"
(arXiv:1502.07943). Every rung is a whole training whose learning rate falls to 0 within its own steps: a score in the
middle of a longer schedule says less about its end.

Who is promoted follows from what wins in the end. Without any limit that is a matter of two objectives: fronts are
promoted one after the other. Where an accuracy drop is allowed, and the fastest student wins, so it is among those in
reach of it; the others come last. On a short schedule all students are below the teacher: what is in reach is counted
from the best student of the rung. Where speed or size alone are limited, the best metric wins, and is promoted.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compress.evaluation.pareto import Points, ranked
from compress.recipes import StudentRecipe
from compress.training.step_plan import steps_for

REDUCTION = 3
RUNGS = (1 / 9, 1 / 3, 1.0)  # shares of a recipe's own steps
LAST = len(RUNGS) - 1
_MARGIN = 0.1  # of the range, by which the reference point of the hypervolume lies below the worst


def at_rung(recipe: StudentRecipe, rung: int, rows: int, classes: int) -> tuple[StudentRecipe, int]:
    """Return a recipe with the steps of a rung, and how many unlabelled rows it reads; 0 for all.

    A lower rung reads no more text than its steps take: to open and tokenise a large pool may take longer than they do.

    Args:
        rows: of the text with the gold rows.
    """
    if rung == LAST:
        return recipe, 0
    training = recipe.training.part(RUNGS[rung]).for_classes(classes)
    steps = steps_for(rows, training)
    read = steps * training.batch_size
    if read >= rows:
        return replace(recipe, training=training), 0
    return replace(recipe, training=replace(training, min_steps=steps, max_steps=steps, max_epochs=100.0)), read


def promoted(count: int) -> int:
    """Return how many of so many students reach the next rung."""
    return math.ceil(count / REDUCTION)


def floor(values: Sequence[float], teacher: float, allowed_drop: float | None) -> float:
    """Return the least metric of the students of a rung with which one may come within an accuracy drop."""
    return -math.inf if allowed_drop is None else min(teacher, max(values, default=teacher)) - allowed_drop / 100


def in_reach(values: Sequence[float], teacher: float, allowed_drop: float | None) -> list[int]:
    """Return the numbers of the students of a rung that may come within an accuracy drop; all where none was given."""
    least = floor(values, teacher, allowed_drop)
    return [index for index, value in enumerate(values) if value >= least]


def promotion_order(points: Points, teacher: float, allowed_drop: float | None, *, metric_wins: bool) -> list[int]:
    """Return the numbers of a rung's students, the first to be promoted first.

    Args:
        points: the logarithm of the speed-up, and the metric (0.90, not 90).
        teacher: the metric of the teacher.
        allowed_drop: in points; None where none was given.
        metric_wins: whether of the students within the limits the one with the best metric is wanted.
    """
    if not points:
        return []
    by_metric = sorted(range(len(points)), key=lambda index: (-points[index][1], -points[index][0], index))
    if metric_wins:
        return by_metric
    within = in_reach([value for _, value in points], teacher, allowed_drop)
    chosen = [points[index] for index in within]
    low, high = np.min(chosen, axis=0), np.max(chosen, axis=0)
    speed, metric = (low - _MARGIN * (high - low) - 1e-9).tolist()
    ahead = [within[index] for index in ranked(chosen, (speed, metric))]
    return ahead + [index for index in by_metric if index not in ahead]
