"""Choose which models make a cascade, and the confidence from which each answers. N rows, C classes.

All choices of members and thresholds are compared on validation rows, by arithmetic: what each member predicts of every
row and how long it takes is known, and so are the predictions and the mean time of any cascade of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product

import numpy as np

from compress.evaluation.cluster_bootstrap import Array
from compress.evaluation.metrics import Metric, paired_difference, score
from compress.evaluation.pareto import non_dominated
from compress.evaluation.softmax import confidence

# Thresholds tried of each member, by how many have one: some thousand cascades.
LEVELS = {1: 100, 2: 40, 3: 14, 4: 7}


@dataclass(frozen=True)
class MemberResult:
    """A model on the validation rows: logits ``[N, C]`` and the time of a row, in milliseconds."""

    name: str
    logits: Array
    latency_ms: float

    @cached_property
    def sure(self) -> Array:
        """The confidence of each prediction ``[N]``."""
        return confidence(self.logits)

    @cached_property
    def predicted(self) -> Array:
        return np.asarray(self.logits.argmax(axis=1))


@dataclass(frozen=True)
class CascadePlan:
    """A cascade: the numbers of its members in turn, and the thresholds of all but the last; of one it is the model.

    ``answered`` is the share of the rows that each member answers, ``predicted`` ``[N]`` what the cascade predicts, and
    ``latency_ms`` the mean time of a row.
    """

    members: tuple[int, ...]
    thresholds: tuple[float, ...]
    answered: tuple[float, ...]
    predicted: Array
    latency_ms: float
    classes: int


def plans(models: Sequence[MemberResult]) -> Iterator[CascadePlan]:
    """Yield cascades of some of the models, in no order of worth; members that no row is left for are none."""
    for count in range(2, len(models) + 1):
        for members in combinations(range(len(models)), count):
            for thresholds in product(*(_levels(models[one].sure, LEVELS[count - 1]) for one in members[:-1])):
                plan = simulate(models, members, thresholds)
                asked = 1 + max(number for number, share in enumerate(plan.answered) if share)
                yield replace(
                    plan, members=members[:asked], thresholds=thresholds[: asked - 1], answered=plan.answered[:asked]
                )


def simulate(models: Sequence[MemberResult], members: Sequence[int], thresholds: Sequence[float]) -> CascadePlan:
    """Return what a cascade does on the rows of its models."""
    rows, classes = models[0].logits.shape
    waiting = np.ones(rows, bool)
    found = np.zeros(rows, np.min_scalar_type(classes))  # thousands are kept at once
    answered, latency_ms = [], 0.0
    for number, threshold in zip(members, (*thresholds, 0.0), strict=True):
        latency_ms += waiting.mean() * models[number].latency_ms
        answers = waiting & (models[number].sure >= threshold)
        found[answers] = models[number].predicted[answers]
        answered.append(float(answers.mean()))
        waiting &= ~answers
    return CascadePlan(tuple(members), tuple(thresholds), tuple(answered), found, float(latency_ms), classes)


def _levels(sure: Array, number: int) -> list[float]:
    """Return thresholds that leave equal steps of the rows to the next member, from none to nearly all."""
    return [float(level) for level in np.unique(np.quantile(sure, np.arange(number) / number))]


def fastest_within(
    found: Iterable[CascadePlan], models: Sequence[MemberResult], gold: Array, metric: Metric, max_drop: float
) -> CascadePlan | None:
    """Return the cascade of least mean time whose loss to the last model is at most ``max_drop`` points.

    What counts is the lower end of the paired 95% interval. It is not corrected for the choice among thousands: on new
    rows the loss is a little larger. Cascades that take as long as the last model are none. Of those
    that take the same time it is the one of fewest members.
    """
    last = models[-1]
    reference, classes = last.predicted, last.logits.shape[1]
    least = score(reference, gold, metric=metric, classes=classes) - max_drop / 100
    for plan in sorted(found, key=_cost):
        if plan.latency_ms >= last.latency_ms:
            return None
        if score(plan.predicted, gold, metric=metric, classes=classes) < least:
            continue  # the interval begins lower still
        difference = paired_difference(plan.predicted, reference, gold, metric=metric, classes=classes)
        if difference.low >= -max_drop:
            return plan
    return None


def best_plans(found: Iterable[CascadePlan], gold: Array, metric: Metric) -> list[CascadePlan]:
    """Return the cascades that none is both faster and better than, by rising mean time."""
    by_cost = sorted(found, key=_cost)
    values = [score(plan.predicted, gold, metric=metric, classes=plan.classes) for plan in by_cost]
    costs = [-plan.latency_ms for plan in by_cost]
    return [by_cost[number] for number in non_dominated(list(zip(costs, values, strict=True)))]


def _cost(plan: CascadePlan) -> tuple[float, int]:
    return plan.latency_ms, len(plan.members)
