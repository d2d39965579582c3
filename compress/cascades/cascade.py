"""Cascade stage: join models so that the fast answer what they are sure of, within a budget of accuracy.

The thresholds of least mean latency are chosen on validation rows among those whose loss to the last model, with its
95% interval, is within the budget there, and checked once on test rows. Models that do not help are left out, be it the
last. All choices of members and thresholds are compared by arithmetic: what each member predicts of every row and how
long it takes is known, and so are the predictions and the mean time of any cascade of them. N rows, C classes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, cast

import numpy as np

from compress.benchmarking.results.formatting import in_points, points, times
from compress.data import Example, check_roles
from compress.errors import CompressError
from compress.evaluation.metrics import Array, Metric, confidence, paired_difference, score
from compress.evaluation.pareto import non_dominated
from compress.files import read_json_table
from compress.inference.batching import runtime_for
from compress.inference.compute import Compute, resolve_device
from compress.inference.predict import check_label_meaning, load
from compress.inference.runners import load_runner, time_side_by_side
from compress.inference.threads import default_threads
from compress.models.cascade_dir import KIND, CascadeDir, check_members, open_model, write_cascade
from compress.models.fitted_rows import TRAINING_ROLES, check_unseen
from compress.models.model_dir import ModelDir
from compress.progress import Progress
from compress.reporting.calibration_page import cascade_page
from compress.reporting.pages import write_study
from compress.requests.calibration import Cascade

FOLDER, CONTENT_NAME = "cascade", "choice.json"
PAGE = f"{FOLDER}/report.html"
# Thresholds tried of each member, by how many have one: some thousand cascades.
COMPARED_ROWS = 64  # of what was written with what it was chosen by
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


def cascade(request: Cascade) -> CascadeDir:
    """Write a cascade of models, with figures and a page about it in its folder ``cascade``.

    Latencies are taken with the threads of the request at batch size 1.

    Raises:
        CompressError: models that do not fit each other, or no cascade that is within the budget and faster than the
            last model.
    """
    members = [ModelDir.open(model) for model in request.models]
    check_members(members)
    last, read = members[-1], {role: request.read(role) for role in ("validation", "test")}
    if len({member.sha256 for member in members}) < len(members):
        raise CompressError("one model is given twice; give each model once, from fast to accurate")
    metric = last.task.metric(request.metric, len(last.labels))
    checked = check_roles({role: own for role, own in read.items() if own}, request.overlap)
    rows = {role: list(cast("Sequence[Example]", own)) for role, own in checked.sets.items()}
    check_unseen(members, rows["validation"])
    check_unseen(members, rows.get("test", []), "test", TRAINING_ROLES)
    gold = {role: np.array(last.task.gold(own, last.labels, role)) for role, own in rows.items()}
    max_accuracy_drop, compute, progress = request.max_accuracy_drop, request.compute, request.progress
    settings = {"max_accuracy_drop": max_accuracy_drop, "metric": metric.name}
    described = checked.described()
    with request.begin(
        {f"member-{number}": member for number, member in enumerate(members, 1)},
        data=described,
        keep=False,
        models=members,
        metric=metric.name,
        **rows,
    ) as stage:
        names = _names(members)
        latencies = _latencies(members, names, rows["validation"], compute, progress)
        judges: dict[str, CascadeJudge] = {}
        for role, own in rows.items():
            found = [_logits(member, own, compute, progress) for member in members]
            results = [MemberResult(name, logits, latencies[name]) for name, logits in zip(names, found, strict=True)]
            judges[role] = CascadeJudge(results, gold[role], metric)
            check_label_meaning(found[-1].argmax(axis=1), judges[role].gold, last.labels, role)
        judge = judges["validation"]
        with progress("Choosing thresholds", None):
            tried = list(plans(judge.models))
            plan = fastest_within(tried, judge.models, judge.gold, metric, max_accuracy_drop)
        if plan is None:
            raise CompressError(_none_within(tried, judge, max_accuracy_drop))
        if len(plan.members) == 1:
            raise CompressError(
                f"{names[plan.members[0]]} alone is within {in_points(max_accuracy_drop)} of {names[-1]}, and "
                "no cascade is faster: use it, or give a smaller --max-accuracy-drop"
            )
        content: dict[str, Any] = {
            "reference": names[-1],
            "members": [names[number] for number in plan.members],
            "left_out": [name for number, name in enumerate(names) if number not in plan.members],
            "thresholds": plan.thresholds,
            **settings,
            "threads": compute.threads or default_threads(),
            "tried": len(tried),
            "models": [judge.alone(model) for model in judge.models],
            "front": [judge.of(one) | {"members": one.members} for one in best_plans(tried, judge.gold, metric)],
            **{role: one.of(simulate(one.models, plan.members, plan.thresholds)) for role, one in judges.items()},
        }
        write_study(content, cascade_page, stage.working / FOLDER / CONTENT_NAME)
        write_cascade({names[number]: members[number] for number in plan.members}, plan.thresholds, stage.working)
        stage.finish(
            kind=KIND,
            data=(*_of_all(members), *described),
            recipe=settings,
            metrics=tuple(
                {"name": metric.name, "value": content[role]["value"], "split": role, "rows": content[role]["rows"]}
                for role in rows
            ),
        )
        some = rows["validation"][:COMPARED_ROWS]
        answers = load(open_model(stage.working), compute=compute).predict(some)
        differ = np.array([last.labels.index(one["label"]) for one in answers]) != plan.predicted[: len(some)]
        # Logits of other tools' int8 graphs depend on the batch: another member may answer rows at a threshold.
        if differ.sum() > 1 + 0.05 * len(some):
            raise RuntimeError("the cascade written to disk predicts otherwise than its members")
    made = open_model(stage.output)
    assert isinstance(made, CascadeDir)
    return made


def cascade_verdict(model: CascadeDir) -> Sequence[str]:
    """Return what a cascade is made of, how fast it is, and what it loses, a sentence each."""
    return cascade_page(choice_of(model)).verdict


def choice_of(model: CascadeDir) -> dict[str, Any]:
    """Return the figures by which a cascade was chosen, as its page shows them."""
    return read_json_table(model.path / FOLDER / CONTENT_NAME)


def _names(members: Sequence[ModelDir]) -> list[str]:
    """Return names of the models that differ: those of their directories where two were given the same."""
    names = [member.name for member in members]
    if len(set(names)) == len(names):
        return names
    return [f"{number}: {member.path.name}" for number, member in enumerate(members, 1)]


def _latencies(
    members: Sequence[ModelDir], names: Sequence[str], rows: Sequence[Example], compute: Compute, progress: Progress
) -> dict[str, float]:
    with progress("Timing", None):
        speeds = time_side_by_side(
            {name: member.path for name, member in zip(names, members, strict=True)},
            rows,
            runtime=runtime_for(members[-1].path),
            threads=compute.threads or default_threads(),
            batch_sizes=(1,),
            device=resolve_device(compute.device, for_onnx=members[-1].is_onnx),
        )
    return {speed.name: speed.latency_ms for speed in speeds}


def _logits(member: ModelDir, rows: Sequence[Example], compute: Compute, progress: Progress) -> Array:
    with progress(f"Predicting by {member.name}", len(rows)) as advance:
        return load_runner(member, compute).logits(rows, advance)


@dataclass(frozen=True)
class CascadeJudge:
    """What models predict of the same rows, and gold class indices ``[N]``; the last model is the reference."""

    models: Sequence[MemberResult]
    gold: Array
    metric: Metric

    def alone(self, model: MemberResult) -> dict[str, Any]:
        """Return what a model costs, and its metric."""
        last = self.models[-1]
        return {
            "name": model.name,
            "latency_ms": model.latency_ms,
            "speedup": last.latency_ms / model.latency_ms,
            "value": score(model.predicted, self.gold, metric=self.metric, classes=model.logits.shape[1]),
        }

    def of(self, plan: CascadePlan) -> dict[str, Any]:
        """Return what a cascade costs and loses against the last model."""
        last = self.models[-1]
        classes = last.logits.shape[1]
        found = paired_difference(plan.predicted, last.predicted, self.gold, metric=self.metric, classes=classes)
        return {
            "rows": len(self.gold),
            "answered": plan.answered,
            "latency_ms": plan.latency_ms,
            "speedup": last.latency_ms / plan.latency_ms,
            "value": score(plan.predicted, self.gold, metric=self.metric, classes=classes),
            "points": found.points,
            "low": found.low,
            "high": found.high,
        }


def _none_within(tried: Sequence[CascadePlan], judge: CascadeJudge, max_drop: float) -> str:
    """Say why there is no cascade: what the most accurate one that is faster than the last model loses."""
    last = judge.models[-1]
    candidates = (plan for plan in tried if plan.latency_ms < last.latency_ms)
    faster = [judge.of(plan) for plan in best_plans(candidates, judge.gold, judge.metric)]
    said = f"no cascade is faster than {last.name} and, by the 95% interval, within {in_points(max_drop)}"
    if not faster:
        return f"{said}: it is the fastest of them alone; give models from fast to accurate"
    best = max(faster, key=lambda one: (one["low"], one["speedup"]))
    return (
        f"{said} of it on these {len(judge.gold):,} validation rows. The nearest is at {points(best['points'])} points "
        f"({points(best['low'])} to {points(best['high'])}) and {times(best['speedup'])}; give more rows, or a larger "
        "--max-accuracy-drop"
    )


def _of_all(members: Sequence[ModelDir]) -> list[dict[str, Any]]:
    """Return the data of all members, each once, so that no benchmark reports on their training rows."""
    found = {json.dumps(entry, sort_keys=True): dict(entry) for member in members for entry in member.manifest.data}
    return list(found.values())
