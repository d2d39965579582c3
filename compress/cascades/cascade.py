"""Cascade stage: join models so that the fast answer what they are sure of, within a limit to what that may change.

The thresholds of least mean latency are chosen on validation rows among those that keep a limit there: of the loss to
the last model (:class:`AccuracyDrop`), or of answers that are not those of the last (:class:`PromisedAgreement`). Test
rows check them once. Models that do not help are left out.

All choices of members and thresholds are compared by arithmetic: what each member predicts of every row and how long it
takes is known, and so are the predictions and the mean time of any cascade of them. N rows, C classes.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, cast

import numpy as np

from compress.benchmarking.results.formatting import in_points, milliseconds, plural, points, times
from compress.data import Example, check_roles
from compress.errors import CompressError, refuse
from compress.evaluation.acceptance import CERTAINTY, accept_from, levels, rows_needed
from compress.evaluation.metrics import ACCURACY, Array, Difference, Metric, confidence, paired_difference, score
from compress.evaluation.pareto import non_dominated
from compress.files import read_json_table, write_atomically
from compress.inference.compute import resolve_device
from compress.inference.language_model import Asker, LanguageModelRunner
from compress.inference.predict import check_label_meaning, load
from compress.inference.runners import time_side_by_side
from compress.inference.threads import default_threads
from compress.models.manifest import Manifest
from compress.models.model_dir import (
    CASCADE_NAME,
    KIND,
    MEMBERS,
    MOST_MEMBERS,
    TRAINING_ROLES,
    CascadeDir,
    LanguageModelMember,
    Model,
    check_members,
    check_unseen,
    open_model,
)
from compress.progress import logger
from compress.reporting.calibration_page import cascade_page
from compress.reporting.pages import write_study
from compress.requests.compression import Cascade
from compress.requests.labelling import LANGUAGE_MODEL

FOLDER, CONTENT_NAME = "cascade", "choice.json"
PAGE = f"{FOLDER}/report.html"
# Thresholds tried of each member, by how many have one: some thousand cascades.
COMPARED_ROWS = 64  # of what was written with what it was chosen by
LEVELS = {1: 100, 2: 40, 3: 14, 4: 7}
AGREEMENT_LEVELS = 100


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

    @property
    def cost(self) -> tuple[float, int]:
        """What is compared: its mean time, and of equally fast ones the number of members."""
        return self.latency_ms, len(self.members)


@dataclass(frozen=True)
class MemberResults:
    """Models on the same rows: logits ``[N, C]`` and the milliseconds of a row of each; the last is the reference.

    ``gold`` are class indices ``[N]``, those of the last model where a limit is to its answers.
    """

    names: Sequence[str]
    logits: Sequence[Array]
    latencies_ms: Sequence[float]
    gold: Array
    metric: Metric

    @cached_property
    def sure(self) -> list[Array]:
        """The confidence of each prediction ``[N]``, by model."""
        return [confidence(one) for one in self.logits]

    @cached_property
    def predicted(self) -> list[Array]:
        return [np.asarray(one.argmax(axis=1)) for one in self.logits]

    def value(self, predicted: Array) -> float:
        return score(predicted, self.gold, metric=self.metric, classes=self.logits[-1].shape[1])

    def difference(self, predicted: Array) -> Difference:
        """Return by how much predictions ``[N]`` are better than the last model's."""
        options: dict[str, Any] = {"metric": self.metric, "classes": self.logits[-1].shape[1]}
        return paired_difference(predicted, self.predicted[-1], self.gold, **options)

    def plans(self) -> Iterator[CascadePlan]:
        """Yield cascades of some of the models, in no order of worth; members that no row is left for are none."""
        for count in range(2, len(self.names) + 1):
            # Thresholds leave equal steps of the rows to the next member, from none to nearly all.
            shares = np.arange(LEVELS[count - 1]) / LEVELS[count - 1]
            for members in combinations(range(len(self.names)), count):
                levels = [np.unique(np.quantile(self.sure[one], shares)).tolist() for one in members[:-1]]
                for thresholds in product(*levels):
                    yield _without_idle(self.simulate(members, thresholds))

    def simulate(self, members: Sequence[int], thresholds: Sequence[float]) -> CascadePlan:
        rows, classes = self.logits[0].shape
        waiting = np.ones(rows, bool)
        found = np.zeros(rows, np.min_scalar_type(classes))  # thousands are kept at once
        answered, latency_ms = [], 0.0
        for number, threshold in zip(members, (*thresholds, 0.0), strict=True):
            latency_ms += waiting.mean() * self.latencies_ms[number]
            answers = waiting & (self.sure[number] >= threshold)
            found[answers] = self.predicted[number][answers]
            answered.append(float(answers.mean()))
            waiting &= ~answers
        return CascadePlan(tuple(members), tuple(thresholds), tuple(answered), found, float(latency_ms))

    def left(self, plan: CascadePlan) -> Array:
        """Tell which rows the last member of a cascade answers, ``[N]``."""
        pairs = zip(plan.members, plan.thresholds, strict=False)
        return np.asarray(np.all([self.sure[number] < threshold for number, threshold in pairs], axis=0))

    def faster(self, found: Iterable[CascadePlan]) -> list[CascadePlan]:
        """Return the cascades of less mean time than the last model's, by rising time and number of members."""
        return sorted((plan for plan in found if plan.latency_ms < self.latencies_ms[-1]), key=lambda plan: plan.cost)

    def best_plans(self, found: Iterable[CascadePlan]) -> list[CascadePlan]:
        """Return the cascades that none is both faster and better than, by rising mean time."""
        by_cost = sorted(found, key=lambda plan: plan.cost)
        worth = [(-plan.latency_ms, self.value(plan.predicted)) for plan in by_cost]
        return [by_cost[number] for number in non_dominated(worth)]

    def alone(self, number: int) -> dict[str, Any]:
        latency_ms = self.latencies_ms[number]
        return {
            "name": self.names[number],
            "latency_ms": latency_ms,
            "speedup": self.latencies_ms[-1] / latency_ms,
            "value": self.value(self.predicted[number]),
        }

    def of(self, plan: CascadePlan) -> dict[str, Any]:
        """Return what a cascade costs and loses against the last model."""
        found = self.difference(plan.predicted)
        return {
            "rows": len(self.gold),
            "answered": plan.answered,
            "latency_ms": plan.latency_ms,
            "speedup": self.latencies_ms[-1] / plan.latency_ms,
            "value": self.value(plan.predicted),
            "points": found.points,
            "low": found.low,
            "high": found.high,
        }


@dataclass(frozen=True)
class AccuracyDrop:
    """A limit: the loss to the last model is at most so many points, by the lower end of the paired 95% interval.

    It is not corrected for the choice among thousands: on new rows the loss is a little larger.
    """

    points: float

    @property
    def settings(self) -> dict[str, float]:
        return {"max_accuracy_drop": self.points}

    @staticmethod
    def read(request: Cascade, role: str, last: Model) -> list[Example]:
        return request.read(role)

    def check_rows(self, rows: int, early: int) -> None:
        """Any number of rows will do: the interval says how much they tell."""

    @staticmethod
    def metric(request: Cascade, last: Model) -> Metric:
        return last.task.metric(request.metric, last.labels)

    @staticmethod
    def gold(rows: Mapping[str, Sequence[Example]], last: Model) -> dict[str, Array]:
        return {role: np.array(last.task.gold(own, last.labels, role)) for role, own in rows.items()}

    @staticmethod
    def plans(results: MemberResults) -> Iterator[CascadePlan]:
        return results.plans()

    def fastest(self, found: Iterable[CascadePlan], results: MemberResults) -> CascadePlan | None:
        least = results.value(results.predicted[-1]) - self.points / 100
        return next(
            (
                plan
                for plan in results.faster(found)
                # Where the value is below the least, the interval begins lower still.
                if results.value(plan.predicted) >= least and results.difference(plan.predicted).low >= -self.points
            ),
            None,
        )

    @staticmethod
    def figures(plan: CascadePlan, results: MemberResults) -> dict[str, Any]:
        return {}

    def alone(self, names: Sequence[str], number: int) -> str:
        """Say that a model keeps the limit without another."""
        return (
            f"{names[number]} alone is within {in_points(self.points)} of {names[-1]}, and no cascade is faster: use "
            "it, or give a smaller --max-accuracy-drop"
        )

    def none(self, tried: Iterable[CascadePlan], results: MemberResults) -> str:
        """Say why there is no cascade: what the most accurate one that is faster than the last model loses."""
        name = results.names[-1]
        best = max(
            map(results.of, results.best_plans(results.faster(tried))),
            key=lambda one: (one["low"], one["speedup"]),
            default=None,
        )
        said = f"no cascade is faster than {name} and, by the 95% interval, within {in_points(self.points)}"
        if best is None:
            return f"{said}: it is the fastest of them alone; give models from fast to accurate"
        return (
            f"{said} of it on these {len(results.gold):,} validation rows. The nearest is at {points(best['points'])} "
            f"points ({points(best['low'])} to {points(best['high'])}) and {times(best['speedup'])}; give more rows, "
            "or a larger --max-accuracy-drop"
        )


@dataclass(frozen=True)
class PromisedAgreement:
    """A limit: one model answers before the last, and its answers certainly are those of the last so often.

    All that are tried keep it, together with 95% certainty.
    """

    least: float

    @property
    def settings(self) -> dict[str, float]:
        return {"agree": self.least}

    @staticmethod
    def read(request: Cascade, role: str, last: Model) -> list[Example]:
        """Read texts, with labels where they are there and fit: rows of a training are recognised by them."""
        try:
            last.task.gold(rows := request.read(role), last.labels, role)
        except CompressError:
            rows = [*(request.open_text(role) or ())]
        return rows

    def check_rows(self, rows: int, early: int) -> None:
        """Refuse fewer rows of validation than make the promise certain of so many models before the last."""
        least = rows_needed(self.least, early)
        few = f"--validation has {plural(rows, 'row')}, and {100 * self.least:.6g}% is not certain below {least:,}"
        refuse((rows < least, f"{few} without a difference; give more, or a smaller --agree"))

    @staticmethod
    def metric(request: Cascade, last: Model) -> Metric:
        return replace(ACCURACY, name="agreement")

    @staticmethod
    def gold(rows: Mapping[str, Sequence[Example]], last: Model) -> dict[str, Array]:
        """Return nothing: what the last model predicts is right."""
        return {}

    def plans(self, results: MemberResults) -> Iterator[CascadePlan]:
        """Yield for each model the cascade with the last one that answers most rows by it."""
        last = len(results.names) - 1
        for number in range(last):
            same = results.predicted[number] == results.predicted[last]
            level = accept_from(results.sure[number], same, self.least, count=AGREEMENT_LEVELS, tries=last)
            if level:
                yield _without_idle(results.simulate((number, last), (level.threshold,)))

    @staticmethod
    def fastest(found: Iterable[CascadePlan], results: MemberResults) -> CascadePlan | None:
        return next(iter(results.faster(found)), None)

    @staticmethod
    def figures(plan: CascadePlan, results: MemberResults) -> dict[str, Any]:
        """Return how many rows the first member answers, and how many of them as the last model does."""
        early = results.sure[plan.members[0]] >= plan.thresholds[0]
        same = (results.predicted[plan.members[0]] == results.predicted[-1])[early]
        level = levels(np.ones(same.size), same, 1 - CERTAINTY, 1)[0] if same.size else None
        return {"rows": same.size, "same": int(same.sum()), "at_least": level.at_least if level else 0.0}

    def alone(self, names: Sequence[str], number: int) -> str:
        return (
            f"{names[number]} alone is certain to agree in {100 * self.least:.6g}% with {names[-1]}, and no cascade is "
            "faster: use it, or give a larger --agree"
        )

    def none(self, tried: Sequence[CascadePlan], results: MemberResults) -> str:
        """Say why there is no cascade whose first member certainly agrees with the last: too slow, or too unsure."""
        *names, last = results.names
        if tried:
            plan = min(tried, key=lambda one: one.cost)
            times_ms = map(milliseconds, (plan.latency_ms, results.latencies_ms[-1]))
            return (
                f"no cascade that certainly gives the answers of {last} is faster than it: "
                f"{results.names[plan.members[0]]} answers {plan.answered[0]:.1%}, in a mean time of "
                f"{' against '.join(times_ms)}; give a faster model before it"
            )
        same = (
            f"{name} in {(one == results.predicted[-1]).mean():.1%}"
            for name, one in zip(names, results.predicted, strict=False)
        )
        return (
            f"no model before {last} certainly gives its answers in {100 * self.least:.6g}% of the rows that it is "
            f"sure of; of all {len(results.gold):,} validation rows {', '.join(same)}: give more rows, "
            f"{rows_needed(self.least, len(names)):,} without a difference at the least, or a smaller --agree"
        )


def _without_idle(plan: CascadePlan) -> CascadePlan:
    """Return a cascade without the members at its end that no row is left for."""
    asked = 1 + max(number for number, share in enumerate(plan.answered) if share)
    members, thresholds = plan.members[:asked], plan.thresholds[: asked - 1]
    return replace(plan, members=members, thresholds=thresholds, answered=plan.answered[:asked])


def cascade(request: Cascade) -> Any:
    """Write a cascade of models, with figures and a page about it in its folder ``cascade``.

    Latencies are taken with the threads of the request at batch size 1. With ``dry_run`` nothing is done, and the
    result is what a language model would be asked.

    Raises:
        CompressError: models that do not fit each other, or no cascade that is within the budget and faster than the
            last model.
    """
    members = _opened(request)
    check_members(members)
    limit = PromisedAgreement(request.agree) if request.agree else AccuracyDrop(request.max_accuracy_drop)
    last = members[-1]
    read = {role: limit.read(request, role, last) for role in ("validation", "test")}
    twice = len({member.sha256 for member in members}) < len(members)
    refuse((twice, "one model is given twice; give each model once, from fast to accurate"))
    metric = limit.metric(request, last)
    ranks = f"a cascade answers by different models, and {metric.name} ranks the probabilities of one"
    refuse((metric.of_probabilities, f"{ranks}; use --metric macro-f1"))
    checked = check_roles({role: own for role, own in read.items() if own}, request.overlap)
    rows = {role: list(cast("Sequence[Example]", own)) for role, own in checked.sets.items()}
    limit.check_rows(len(rows["validation"]), len(members) - 1)
    check_unseen(members, rows["validation"])
    check_unseen(members, rows.get("test", []), "test", TRAINING_ROLES)
    gold = limit.gold(rows, last)
    if request.dry_run:
        return last.runner.asker.estimate(chain.from_iterable(rows.values()))
    compute, progress = request.compute, request.progress
    settings = {**limit.settings, "metric": metric.name}
    described = checked.described()
    with request.begin(
        {f"member-{number}": member for number, member in enumerate(members, 1)},
        data=described,
        keep=False,
        models=members,
        metric=metric.name,
        **rows,
    ) as stage:
        names = [member.name for member in members]
        if len(set(names)) < len(names):
            names = [f"{number}: {member.path.name}" for number, member in enumerate(members, 1)]
        here = {name: one for name, one in zip(names, members, strict=True) if not isinstance(one, LanguageModelMember)}
        with progress("Timing", None):
            speeds = time_side_by_side(
                {name: member.path for name, member in here.items()},
                rows["validation"],
                runtime="",
                threads=compute.threads or default_threads(),
                batch_sizes=(1,),
                device=resolve_device(compute.device, for_onnx=members[0].is_onnx),
            )
        latencies_ms, usd = [speed.latency_ms for speed in speeds], np.zeros(0)
        results: dict[str, MemberResults] = {}
        for role, own in rows.items():
            found = []
            for member in members:
                with progress(f"Predicting by {member.name}", len(own)) as advance:
                    found.append(member.runner.logits(own, advance))
            silent = np.isnan(found[-1][:, 0]).all()
            refuse((silent, f"{names[-1]} gave no label to the {len(own):,} rows of {role}; correct --prompt"))
            if len(latencies_ms) < len(members):
                latencies_ms.append(last.runner.latency_ms())
                usd = last.runner.usd() if request.prices else usd
            answers = found[-1].argmax(axis=1)
            results[role] = MemberResults(names, found, latencies_ms, gold.get(role, answers), metric)
        if request.language_model:
            logger.info("%s", last.runner.bill())
        asked, results = results["validation"], {role: _answered(one, role) for role, one in results.items()}
        for role, one in results.items():
            check_label_meaning(one.predicted[-1], one.gold, last.labels, role)
        validation = results["validation"]
        with progress("Choosing thresholds", None):
            tried = list(limit.plans(validation))
            plan = limit.fastest(tried, validation)
        if plan is None:
            raise CompressError(limit.none(tried, validation))
        refuse((len(plan.members) == 1, limit.alone(names, plan.members[0])))
        chosen = [names[number] for number in plan.members]
        question = {} if chosen[-1] in here else {"language_model": last.runner.kept()}
        cost = {}
        if question and usd.size:
            thousand = {"alone": 1000 * float(usd.mean()), "cascade": 1000 * float((usd * asked.left(plan)).mean())}
            cost = {"usd_per_1000_texts": thousand}
        content: dict[str, Any] = {
            "reference": names[-1],
            "members": chosen,
            "left_out": [name for name in names if name not in chosen],
            "thresholds": plan.thresholds,
            **settings,
            "threads": compute.threads or default_threads(),
            "tried": len(tried),
            "models": [validation.alone(number) for number in range(len(names))],
            "front": [validation.of(one) | {"members": one.members} for one in validation.best_plans(tried)],
            **cost,
            **{role: one.of(one.simulate(plan.members, plan.thresholds)) for role, one in results.items()},
            "agreement": {role: limit.figures(plan, one) for role, one in results.items()},
        }
        write_study(content, cascade_page, stage.working / FOLDER / CONTENT_NAME)
        for place, name in enumerate(filter(here.__contains__, chosen), 1):
            target = stage.working / MEMBERS / str(place)
            shutil.copytree(here[name].path, target, ignore=shutil.ignore_patterns(".*", "README.md"))
        # The data of all members, each once, so that no benchmark reports on their training rows.
        entries = [dict(entry) for member in members for entry in member.manifest.data]
        fitted_on = {json.dumps(entry, sort_keys=True): entry for entry in entries}.values()
        choice = {"members": chosen, "thresholds": plan.thresholds, **question}
        write_atomically(stage.working / CASCADE_NAME, json.dumps(choice) + "\n")
        stage.finish(
            kind=KIND,
            data=(*fitted_on, *described),
            recipe=settings | question,
            notes=cost,
            metrics=tuple(
                {"name": metric.name, "value": content[role]["value"], "split": role, "rows": content[role]["rows"]}
                for role in rows
            ),
        )
        known = np.flatnonzero(~np.isnan(asked.logits[-1][:, 0]))
        some = [rows["validation"][number] for number in known[:COMPARED_ROWS]]
        given = load(open_model(stage.working), compute=compute).predict(some)
        differ = np.array([last.labels.index(one["label"]) for one in given]) != plan.predicted[: len(some)]
        # Logits of other tools' int8 graphs depend on the batch: another member may answer rows at a threshold.
        if differ.sum() > 1 + 0.05 * len(some):
            raise RuntimeError("the cascade written to disk predicts otherwise than its members")
    return open_model(stage.output)


def _opened(request: Cascade) -> list[Model]:
    """Open the models; what a language model is asked is checked, and nothing is asked."""
    here = request.models[:-1] if request.language_model else request.models
    members = [replace(Model.open(model), compute=request.compute) for model in here]
    if request.language_model:
        refuse((not members, f"a cascade has 2 to {MOST_MEMBERS} members; give a model before the language model too"))
        labels = members[0].labels
        about = Manifest(stage="", name=f"{LANGUAGE_MODEL}{request.language_model}", labels=labels)
        runner = LanguageModelRunner(Asker(request.language_model, request, labels=labels), labels)
        members.append(LanguageModelMember(Path(about.name), about, asked=runner.kept(), opened=runner))
    return members


def _answered(results: MemberResults, role: str) -> MemberResults:
    """Return the results without the rows that get no label of the last model."""
    known = ~np.isnan(results.logits[-1][:, 0])
    if known.all():
        return results
    name, left_out = results.names[-1], int((~known).sum())
    logger.warning("%s of %s got no label of %s and are left out", plural(left_out, "row"), role, name)
    return replace(results, logits=[one[known] for one in results.logits], gold=results.gold[known])


def cascade_verdict(model: CascadeDir) -> Sequence[str]:
    """Return what a cascade is made of, how fast it is, and what it loses, a sentence each."""
    return cascade_page(choice_of(model)).verdict


def choice_of(model: CascadeDir) -> dict[str, Any]:
    """Return the figures by which a cascade was chosen, as its page shows them."""
    return read_json_table(model.path / FOLDER / CONTENT_NAME)
