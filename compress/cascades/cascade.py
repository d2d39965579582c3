"""Cascade stage: join models so that the fast answer what they are sure of, within a budget of accuracy.

The thresholds of least mean latency are chosen on validation rows (:mod:`compress.cascades.thresholds`) among those
whose loss to the last model, with its 95% interval, is within the budget there, and checked once on test rows. Models
that do not help are left out, be it the last.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from compress.benchmarking.results.formatting import in_points, points, times
from compress.cascades.thresholds import CascadePlan, MemberResult, best_plans, fastest_within, plans, simulate
from compress.data import Example, LabelledData, check_roles, encode_gold
from compress.data.tokenization import one_column
from compress.errors import CompressError
from compress.evaluation.cluster_bootstrap import Array
from compress.evaluation.metrics import Metric, find_metric, paired_difference, score
from compress.files import read_json_table
from compress.inference.compute import Compute, resolve_device
from compress.inference.open_runtime import runtime_for
from compress.inference.predict import check_label_meaning, load
from compress.inference.runners import LoadedModel
from compress.inference.side_by_side import time_side_by_side
from compress.inference.threads import default_threads
from compress.models.cascade_dir import KIND, CascadeDir, check_members, open_model, write_cascade
from compress.models.fitted_rows import TRAINING_ROLES, check_unseen
from compress.models.model_dir import ModelDir
from compress.models.stage import Stage
from compress.progress import Progress, silent
from compress.reporting.cascade_page import verdict, view
from compress.reporting.rendering import write_study

FOLDER, CONTENT_NAME = "cascade", "choice.json"
COMPARED_ROWS = 64


@dataclass(frozen=True)
class CascadeData:
    """Rows of a cascade.

    Args:
        labelled: ``validation``, rows that choose the thresholds, and which no member was trained on.
        test: rows that check the cascade once.
    """

    labelled: LabelledData
    test: Sequence[Example] = ()


def cascade(
    models: Sequence[ModelDir | str | Path],
    output: str | Path,
    *,
    data: CascadeData,
    max_accuracy_drop: float = 1.0,
    compute: Compute = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> CascadeDir:
    """Write a cascade of models, with figures and a page about it in its folder ``cascade``.

    Args:
        models: classifiers of the same labels, from fast to accurate; the last is what the others are measured against.
        max_accuracy_drop: points of the metric that the cascade may lose against the last model, by the 95% interval.
        compute: device and CPU threads; latencies are taken with these threads at batch size 1.

    Raises:
        CompressError: models that do not fit each other, or no cascade that is within the budget and faster than the
            last model.
    """
    members = [ModelDir.open(model) for model in models]
    check_members(members)
    last, validation = members[-1], list(data.labelled.validation)
    if len({member.sha256 for member in members}) < len(members):
        raise CompressError("one model is given twice; give each model once, from fast to accurate")
    metric = find_metric(data.labelled.metric, task=last.task, classes=len(last.labels))
    checked = check_roles(
        {"validation": validation, **({"test": list(data.test)} if data.test else {})}, data.labelled.overlap
    )
    rows = {role: list(cast("Sequence[Example]", own)) for role, own in checked.sets.items()}
    check_unseen(members, rows["validation"])
    check_unseen(members, rows.get("test", []), "test", TRAINING_ROLES)
    gold = {role: encode_gold(own, last.labels, task=last.task, name=role) for role, own in rows.items()}
    settings = {"max_accuracy_drop": max_accuracy_drop, "metric": metric.name}
    described = checked.described()
    with Stage.begin(
        "cascade",
        output,
        parents={f"member-{number}": member for number, member in enumerate(members, 1)},
        settings=settings,
        data=described,
        force=force,
        keep=False,
    ) as stage:
        names = _names(members)
        latencies = _latencies(members, names, rows["validation"], compute, progress)
        judges: dict[str, CascadeJudge] = {}
        for role, own in rows.items():
            found = [_logits(member, own, compute, progress) for member in members]
            results = [MemberResult(name, logits, latencies[name]) for name, logits in zip(names, found, strict=True)]
            judges[role] = CascadeJudge(results, one_column(gold[role]).astype(int), metric)
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
        write_study(content, view, stage.working / FOLDER / CONTENT_NAME)
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
        _check_same(stage.working, rows["validation"][:COMPARED_ROWS], plan, compute)
    made = open_model(output)
    assert isinstance(made, CascadeDir)
    return made


def cascade_verdict(model: CascadeDir) -> Sequence[str]:
    """Return what a cascade is made of, how fast it is, and what it loses, a sentence each."""
    return verdict(choice_of(model))


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
        return LoadedModel.load(member, compute).logits(rows, advance)


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


def _check_same(working: Path, rows: Sequence[Example], plan: CascadePlan, compute: Compute) -> None:
    """Open what was written and compare its predictions with those that it was chosen by."""
    made = open_model(working)
    found = [made.labels.index(one["label"]) for one in load(made, compute=compute).predict(rows)]
    # Logits of int8 depend a little on the batch, so that rows at a threshold may be answered by another member.
    if (np.array(found) != plan.predicted[: len(rows)]).sum() > 1 + 0.05 * len(rows):
        raise CompressError("the cascade that was written predicts otherwise than its members; please report this")
