"""Results of several seeds and several data sets in one: what a recipe is worth, not one lucky model of it.

S seeds, N rows, K data sets. Lines belong together when they share recipe (a model without one: its name; a
teacher: being one), kind, stage, runtime, device and metric. Two different models of one data set and seed, such as two
levels of pruning, are no repetitions of each other; such lines are taken apart again by the models' names.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

import numpy as np

from compress.benchmarking.results.files import grouped, is_control_of
from compress.benchmarking.results.schema import REFERENCE_RUNTIME, Measurement
from compress.evaluation.metrics import Array, SeedSample, difference_interval
from compress.tasks import metrics_by_name

SHARED = ("kind", "stage", "runtime", "device", "metric_name")
Key = Callable[[Measurement], tuple[Any, ...]]
_shared: Key = attrgetter(*SHARED)
_unit_of: Key = attrgetter("data_sha256", "training_seed")
# The benchmark that a line is from: it is compared with the teacher of its own run.
_run_of: Key = attrgetter("data_sha256", "created")
_model_of: Key = attrgetter("data_sha256", "created", "model", "runtime", "device")
SeedPair = tuple[Measurement, Measurement | None]  # a line, and what it is compared with: None is its teacher


@dataclass(frozen=True)
class Aggregate:
    """A recipe in a runtime over seeds and data sets. Metrics are fractions, differences are in points.

    ``metric``, ``difference_points`` and ``gain_points`` are macro means: over the seeds of each data set, then over
    the sets. ``metric_spread`` is the standard deviation over seeds (n - 1) of these means; None where a set has one
    seed only. The intervals ``low`` to ``high`` are 95% intervals of the difference to the teacher, ``gain_low`` to
    ``gain_high`` of the difference to the control of the same seed; None where ``notes`` say what is missing. With one
    seed they speak of that trained model only. ``gain_points`` is None without a control.
    """

    name: str
    models: tuple[str, ...]
    recipe: str
    kind: str
    stage: str
    runtime: str
    device: str
    metric_name: str
    seeds: int  # of the data set with fewest
    data_sets: int
    rows: int  # of all data sets together
    metric: float
    metric_spread: float | None
    difference_points: float
    low: float | None
    high: float | None
    gain_points: float | None
    gain_low: float | None
    gain_high: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RowPredictions:
    """What lines keep of every row: predictions by model and runtime, the teacher's and gold by benchmark run."""

    predictions: dict[tuple[Any, ...], Array]
    teacher: dict[tuple[Any, ...], Array]
    gold: dict[tuple[Any, ...], Array]

    @classmethod
    def read(cls, lines: Sequence[Measurement]) -> Self:
        said = [line for line in reversed(lines) if line.predictions]
        return cls(
            {_model_of(line): np.asarray(line.predictions) for line in said},
            {_run_of(line): np.asarray(line.predictions) for line in said if line.is_reference},
            {_run_of(line): np.asarray(line.gold) for line in reversed(lines) if line.gold},
        )

    def columns(self, pairs: Sequence[SeedPair], notes: list[str]) -> SeedSample | None:
        """Return the columns of one data set; where anything is missing there are none, and ``notes`` say what."""
        predicted: list[Any] = [self.predictions.get(_model_of(line)) for line, _ in pairs]
        reference: list[Any] = [
            self.teacher.get(_run_of(line)) if other is None else self.predictions.get(_model_of(other))
            for line, other in pairs
        ]
        missing = [
            f"no predictions of {name} on {line.data}{_seed_of(line)}"
            for (line, other), *columns in zip(pairs, predicted, reference, strict=True)
            for name, column in zip((line.model, other.model if other else "the teacher"), columns, strict=True)
            if column is None
        ]
        first = pairs[0][0]
        gold = self.gold.get(_run_of(first))
        if gold is None:
            missing.append(f"no gold labels of {first.data}")
        if any(line.labels != first.labels for pair in pairs for line in pair if line):  # predictions are their numbers
            missing.append(f"labels of {first.data} in another order")
        notes += missing
        if missing or gold is None:
            return None
        metric, classes = metrics_by_name()[first.metric_name or ""], len(first.labels)
        return SeedSample(np.stack(predicted), np.stack(reference), gold, metric, classes)


def aggregate(lines: Iterable[Measurement]) -> list[Aggregate]:
    """Return what every recipe reaches over its seeds and data sets, in the order of the lines.

    Any line of a model will do, whatever its batch size, threads and padding: quality does not depend on them. Of a
    model and seed measured twice on the same data the newest run counts. What has random weights is left out.
    """
    kept = [line for line in lines if line.metric is not None]
    runs = grouped(kept, lambda line: (line.model, *_unit_of(line), *_shared(line)))
    members = [max(of_one, key=attrgetter("created")) for of_one in runs.values()]
    answers = RowPredictions.read(kept)
    return [_aggregate(name, group, members, answers) for name, group in _named_groups(members)]


def _aggregate(
    name: str, group: Sequence[Measurement], members: Sequence[Measurement], answers: RowPredictions
) -> Aggregate:
    head = group[0]
    sets = list(grouped(group, attrgetter("data_sha256")).values())
    # Which data sets of the metric the group lacks, and where it has fewer seeds than elsewhere.
    there, most = {lines[0].data_sha256 for lines in sets}, max(map(len, sets))
    known = {line.data_sha256: line.data for line in members if line.metric_name == head.metric_name}
    notes = [f"not measured on {data}" for sha256, data in known.items() if sha256 not in there]
    notes += [f"{len(lines)} of {most} seeds on {lines[0].data}" for lines in sets if len(lines) < most]
    metrics = [[line.metric or 0.0 for line in lines] for lines in sets]
    bounds: tuple[float | None, float | None]
    if head.kind == "teacher" and head.runtime == REFERENCE_RUNTIME:
        bounds = 0.0, 0.0  # it is what the others are compared with
    elif len(group) == 1:
        bounds = head.difference[1:] if head.difference else (None, None)
    else:
        bounds = _interval([[(line, None) for line in lines] for lines in sets], answers, notes)
    pairs = _with_controls(group, members, notes)
    gain_low, gain_high = _interval(pairs, answers, notes) if pairs else (None, None)
    return Aggregate(
        name=name,
        models=tuple(dict.fromkeys(line.model for line in group)),
        recipe=head.recipe,
        **{key: getattr(head, key) for key in SHARED},
        seeds=min(map(len, sets)),
        data_sets=len(sets),
        rows=sum(lines[0].metric_rows for lines in sets),
        metric=_mean(metrics),
        metric_spread=_spread(metrics),
        difference_points=_mean([[line.difference_points or 0.0 for line in lines] for lines in sets]),
        low=bounds[0],
        high=bounds[1],
        gain_points=_mean([[m.points_above(c) for m, c in of_set if c] for of_set in pairs]) if pairs else None,
        gain_low=gain_low,
        gain_high=gain_high,
        notes=tuple(dict.fromkeys(notes)),
    )


def _mean(sets: Sequence[Sequence[float]]) -> float:
    """Return the mean over sets of the means over seeds."""
    return float(np.mean([np.mean(of_set) for of_set in sets]))


def _spread(sets: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation of :func:`_mean` over seeds, or None where a set has but one seed.

    Models of different sets are trained apart, so the variances of the sets add up: sqrt(sum of variances) / K.
    """
    if min(map(len, sets)) < 2:
        return None
    return float(np.sqrt(sum(np.var(of_set, ddof=1) for of_set in sets)) / len(sets))


def _interval(
    sets: Sequence[Sequence[SeedPair]], answers: RowPredictions, notes: list[str]
) -> tuple[float | None, float | None]:
    """Return the interval over all sets; where anything is missing there is none, and ``notes`` say what."""
    found = [answers.columns(pairs, notes) for pairs in sets]
    samples = [sample for sample in found if sample is not None]
    return difference_interval(samples) if len(samples) == len(found) else (None, None)


def _with_controls(
    group: Sequence[Measurement], members: Sequence[Measurement], notes: list[str]
) -> list[list[SeedPair]]:
    """Pair every line with the control of its data set and seed; empty without controls on every data set."""
    head, models = group[0], {line.model for line in group}
    if head.kind != "model":
        return []
    alike = attrgetter(*(key for key in SHARED if key != "kind"))
    controls: dict[tuple[Any, ...], Measurement] = {}
    for line in sorted(members, key=lambda line: line.control_of not in models):
        if is_control_of(line, group) and alike(line) == alike(head):
            controls.setdefault(_unit_of(line), line)
    if not controls:
        return []
    pairs: list[list[SeedPair]] = []
    for lines in grouped(group, attrgetter("data_sha256")).values():
        notes += [f"no control on {x.data}{_seed_of(x)}" for x in lines if _unit_of(x) not in controls]
        pairs.append([(line, controls[_unit_of(line)]) for line in lines if _unit_of(line) in controls])
    return pairs if all(pairs) else []


def _named_groups(members: Sequence[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """Group repetitions by name; two models of one data set and seed are separate groups."""

    def named(line: Measurement) -> tuple[Any, ...]:
        return line.recipe or ("teacher" if line.kind == "teacher" else line.model), *_shared(line)

    groups: list[tuple[str, list[Measurement]]] = []
    for (name, *_), group in grouped(members, named).items():
        if len({_unit_of(line) for line in group}) == len(group):
            groups.append((name, group))
        else:
            groups += grouped(group, attrgetter("model")).items()
    return groups


def _seed_of(line: Measurement) -> str:
    return "" if line.training_seed is None else f", seed {line.training_seed}"
