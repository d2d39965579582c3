"""Search stage: find the student that meets a budget, and measure it on rows that took no part in finding it.

The pool is labelled once. Shapes are timed before they are trained, trained by successive halving, and judged on
validation rows. The result holds the winner, the front, all trials and a page.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from compress.benchmarking.benchmark import BenchmarkOutput, benchmark
from compress.benchmarking.results.formatting import plural
from compress.cascades.cascade import cascade, choice_of
from compress.data import Example, ExampleSource, TextSource, check_roles, row_key
from compress.errors import CompressError, refuse
from compress.evaluation.metrics import Metric
from compress.fields import fields_of
from compress.files import write_atomically, write_json_lines
from compress.inference.compute import Compute, resolve_device
from compress.inference.predict import check_gold
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import MANIFEST_NAME, Manifest, is_whole
from compress.models.model_dir import (
    FITTING_ROLES,
    MOST_MEMBERS,
    TRAINING_ROLES,
    CascadeDir,
    Model,
    check_unseen,
    tell_seen,
)
from compress.models.output_dir import Stage, finish
from compress.progress import Progress, logger, silent
from compress.quantization.quantize import quantize
from compress.recipes import BenchmarkSettings
from compress.recipes.catalogue import student_toml
from compress.reporting.pages import write_page
from compress.reporting.search_page import search_page
from compress.requests import Request
from compress.requests.compression import Cascade, Export, Prune, Quantize
from compress.requests.labelling import Label, label
from compress.requests.training import BEST, CONTENT_NAME, Distill, Search, SearchLimits, SearchResult
from compress.searching.exploration import Exploration, SearchClock
from compress.searching.making import Trainer, ValidationRows, pruning_of, quiet_stages
from compress.searching.space import QUANTIZER, ShapeSampler, import_optuna, space_for
from compress.searching.trials import (
    RUNGS,
    SearchBudget,
    ShapeTiming,
    Trial,
    ValidationScore,
    choose,
    closest,
    closest_shape,
    front_of,
)

FRONT_NAME, TRIALS_NAME = "front.jsonl", "trials.jsonl"
TEST_NAME, SAMPLER_NAME = "results.jsonl", "sampler.json"
MEASURING_S = 60.0
TEACHER = "the teacher in int8"  # as the last member of a cascade

# Fields of the search that its winner is made with again.
_AGAIN = (
    *("teacher", "unlabeled", "train", "validation", "metric", "overlap", "seed", "device", "threads", "precision"),
    *("text_column", "text_pair_column", "label_column", "label_separator", "label_map", "query_column", "format"),
)
# Those of them that say how the pool is labelled: others of their names mean something else to label.
_LABELLED_BY = ("teacher", "unlabeled", "text_column", "text_pair_column", "format", "device", "threads")


def search(request: Search) -> SearchResult:
    """Search for the student that meets a budget, and return what was found.

    ``best`` in it is the winner, a model or a cascade, where one met the budget on validation rows. ``search.json``
    says whether that is so and test rows do not refute it. Timing takes as many threads as trainings, by default one.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    import_optuna()
    budget = SearchBudget(**{name: getattr(request, name) for name in fields_of(SearchLimits)})
    model = Model.open(request.teacher)
    rows = check_data(model, request)
    compute = replace(request.compute, device=resolve_device(request.device))
    roles = ("unlabeled", "train", "validation", "test")
    with request.begin(
        {"teacher": model},
        data=rows.described,
        **{role: getattr(rows, role) for role in roles},
        metric=rows.metric.name,
        dropped=rows.left_out,
        threads=compute.threads,
    ) as stage:
        check_gold(model, rows.validation, "validation", compute)
        trainer = trainer_of(model, stage.scratch / "shapes", rows, compute, request.progress, labels=stage.scratch)
        sampler = ShapeSampler(stage.scratch / SAMPLER_NAME, space_for(model.config), compute.seed)
        with SearchClock(stage.scratch / "clock.json", budget.seconds) as clock:
            explored = Exploration(budget, sampler, trainer, clock)
            explored.run()
        trial = choose(explored.judged, budget)
        joined = join(explored, stage.scratch, trial)
        content = content_of(explored, trial, joined, rows, request.command)
        best = stage.working / BEST
        shutil.rmtree(best, ignore_errors=True)  # of a start that was killed here
        for file in stage.working.glob(f"{BEST}*.toml"):
            file.unlink()
        if chosen := joined.students if joined else [trial] if trial else []:
            source = joined.model.path if joined else trainer.deployed(chosen[0].shape, chosen[0].last.rung)
            deploy(source, best, None if joined else trial, content)
            content["again"] = making_again(request, explored, chosen, joined, stage)
            if rows.test:
                test = measure(explored, best, rows.test, stage.working / TEST_NAME, request.command)
                refuted = budget.is_refuted(test["high"], test["speedup"]["high"], test["latency_ms"]["low"])
                left_out = [found["left_out"]["rows"] for role, found in rows.left_out.items() if role in FITTING_ROLES]
                content |= {"test": test, "met": not refuted, "left_out": sum(left_out)}
        write_atomically(stage.working / CONTENT_NAME, json.dumps(content, indent=1) + "\n")
        write_json_lines(stage.working / TRIALS_NAME, content["trials"])
        by_number = {row["trial"]: row for row in content["trials"]}
        write_json_lines(stage.working / FRONT_NAME, [by_number[number] for number in content["front"]])
        write_page(search_page(content), stage.working)
        recipe = {"budget": content["budget"], **content["limits"]}
        stage.finish(kind="search", recipe=recipe, notes={"met": content["met"]})
    return SearchResult(stage.output)


@dataclass(frozen=True)
class SearchRows:
    """Checked rows by role, of which none is in two; what was left out for that, and the entries of a manifest."""

    unlabeled: TextSource
    train: Sequence[Example]
    validation: Sequence[Example]
    test: Sequence[Example]
    metric: Metric
    left_out: dict[str, dict[str, Any]]
    described: list[dict[str, Any]]


def check_data(model: Model, request: Search) -> SearchRows:
    """Check everything about the request that can be known before the work.

    Raises:
        CompressError: students of this teacher are not searched for, or rows do not fit it.
    """
    task = model.task
    refuse(
        (
            model.is_onnx,
            f"{model.path} is an ONNX model, from which no student starts; give its torch directory",
        ),
        (task.no_search, f"{model.path} {task.no_search}"),
    )
    labelled, unlabeled = request.labelled, cast(TextSource, request.open_text())
    given: dict[str, Any] = {"train": labelled.train, "unlabeled": unlabeled, "validation": labelled.validation}
    refuse(
        *(
            (not given[role], f"a search needs labelled rows of {role}; give --{role} FILE")
            for role in ("train", "validation")
        )
    )
    if test := request.read("test"):
        given["test"] = test
    metric = task.metric(labelled.metric, model.labels)
    checked = check_roles(given, labelled.overlap)
    logger.info("rows: %s", checked.describe())
    sets: dict[str, Any] = {"test": [], **checked.sets}
    for role in ("train", "validation", "test"):
        task.gold(sets[role], model.labels, role)
    check_unseen([model], sets["validation"])
    check_unseen([model], sets["test"], "test", TRAINING_ROLES)  # the benchmark refuses them, hours later
    tell_seen([model], sets["test"], {"train": labelled.train, "validation": labelled.validation})
    pool = sets["unlabeled"].without(frozenset(map(row_key, sets["train"])))
    refuse(
        (
            next(iter(pool), None) is None,
            f"all rows of {unlabeled.name} are rows of train too; give text that has others with --unlabeled FILE",
        )
    )
    gold = (sets["train"], sets["validation"], sets["test"])
    return SearchRows(pool, *gold, metric, checked.left_out, checked.described())


def trainer_of(
    model: Model, folder: Path, rows: SearchRows, compute: Compute, progress: Progress = silent, *, labels: Path
) -> Trainer:
    """Return what times and trains shapes in ``folder``; ``labels`` gets those of pool and gold rows, where missing."""
    folder.mkdir(exist_ok=True)
    placed: dict[str, Any] = {"device": compute.device, "threads": compute.threads, "progress": progress}
    sources = {"pool": rows.unlabeled, "train": ExampleSource(rows.train, "train")}
    places = {labels / f"{name}-labels": source for name, source in sources.items()}
    for place, source in places.items():
        if not is_whole(place):
            label(model, source, place, **placed)
    validation = ValidationRows(model, rows.validation, rows.metric, compute.threads or 1, compute.seed)
    return Trainer(model, folder, tuple(map(LabelDir.open, places)), rows.train, validation, compute, progress)


# Students of the front, and the teacher in int8, are joined into a cascade that is faster than the best student alone.
# With the teacher as its last member it may be within a drop of accuracy that no student is within. It is chosen by
# ``compress cascade``, whose rule is stricter than that for students: among thousands of cascades the one that looks
# good enough by its estimate is so by luck.


@dataclass(frozen=True)
class Joined:
    """A cascade, the students in it in the order in which they are asked, and what it costs and is worth.

    ``timing`` is of the mean time of a row, against the teacher in torch; it follows from the typical times of the
    members, so that no interval of it is known.
    """

    model: CascadeDir
    students: Sequence[Trial]
    timing: ShapeTiming
    score: ValidationScore

    @property
    def row(self) -> dict[str, Any]:
        choice, timing = choice_of(self.model), asdict(self.timing)
        return {
            **{name: choice[name] for name in ("members", "thresholds")},
            "answered": choice["validation"]["answered"],
            **{name: timing[name] for name in ("speedup", "latency_ms", "size_bytes")},
            **asdict(self.score),
        }


def join(explored: Exploration, folder: Path, winner: Trial | None) -> Joined | None:
    """Return a cascade that meets the budget and is faster than the winner; None where there is none.

    Only where the fastest within a drop of accuracy is asked for, of a classifier, and no limit of latency: what a
    cascade takes is a mean.
    """
    budget, no_cascade = explored.budget, explored.trainer.teacher.task.no_cascade
    if budget.max_accuracy_drop is None or budget.max_latency_ms is not None or no_cascade:
        return None
    # Of a long front some are left out, so that the committed students are joined by themselves too.
    groups = {"cascade": _of_front(explored.judged), "cascade-committed": _of_front(explored.whole)}
    if groups["cascade"] == groups["cascade-committed"]:
        del groups["cascade-committed"]
    found = [_joined(explored, students, folder / name) for name, students in groups.items() if students]
    # Certainly so: several models that are hardly faster than one are not worth it.
    least = 0.0 if winner is None else winner.timing.high
    able = [one for one in found if one and one.timing.speedup > least and budget.met_by(one.score, one.timing)]
    return max(able, key=lambda one: one.timing.speedup, default=None)


def _of_front(judged: Sequence[Trial]) -> list[Trial]:
    """Return the members that are tried: of the front, and first those that were trained for all steps."""
    front, most = front_of(judged), MOST_MEMBERS - 1
    complete, rest = ([one for one in front if one.is_complete is whole] for whole in (True, False))
    chosen = [*_spread(complete, most), *_spread(rest, max(0, most - len(complete)))]
    return sorted(chosen, key=front.index)


def _spread(front: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most so many of a front, the fastest and the best one among them, others evenly between."""
    if len(front) <= most:
        return list(front)
    return [front[round(place)] for place in np.linspace(0, len(front) - 1, most)]


def _joined(explored: Exploration, students: Sequence[Trial], place: Path) -> Joined | None:
    trainer, validation = explored.trainer, explored.trainer.validation
    last = place.with_name("teacher-int8")
    try:
        with quiet_stages():
            if not is_whole(last):
                quantize(Quantize(trainer.teacher, last, method=QUANTIZER))
            named = {one.shape.name: trainer.deployed(one.shape, one.last.rung) for one in students}
            request = Cascade(
                tuple(_named(path, name) for name, path in {**named, TEACHER: last}.items()),
                place,
                validation=list(validation.examples),
                metric=validation.metric.name,
                max_accuracy_drop=explored.budget.max_accuracy_drop or 0.0,
                device="cpu",
                threads=validation.threads,
                force=True,  # one of an earlier start may be of other students
            )
            made = cascade(request)
    except CompressError as error:
        logger.info("no cascade: %s", error)
        return None
    choice = choice_of(made)
    members = [one for name in made.member_names for one in students if one.shape.name == name]
    # By how much it is faster than its first student, times the speed-up of that one.
    alone_ms = next(model["latency_ms"] for model in choice["models"] if model["name"] == members[0].shape.name)
    share, first = alone_ms / choice["validation"]["latency_ms"], members[0].timing
    speedup = first.speedup * share
    timing = ShapeTiming(first.latency_ms / share, speedup, speedup, speedup, made.size_bytes, first.teacher_ms)
    return Joined(made, members, timing, validation.judge(validation.predicted(made.path)))


def _named(directory: Path, name: str) -> Model:
    model = Model.open(directory, verify=False)
    return replace(model, manifest=replace(model.manifest, name=name))


def content_of(
    explored: Exploration, winner: Trial | None, joined: Joined | None, rows: SearchRows, command: str
) -> dict[str, Any]:
    """Return what was found, as JSON values that the page is made of."""
    budget, judged, trials, trainer = explored.budget, explored.judged, explored.trials, explored.trainer
    timed = [trial for trial in trials if not trial.timing.fault]
    near = None if winner else closest(judged, budget) or closest_shape(timed, budget)
    counts = {role: len(getattr(rows, role)) for role in ("train", "validation", "test")}
    return {
        "teacher": trainer.teacher.name,
        "metric": trainer.validation.metric.name,
        "teacher_value": trainer.validation.teacher_value,
        "rows": counts,
        "threads": trainer.validation.threads,
        "seed": trainer.compute.seed,
        "budget": budget.asked,
        "asked": budget.describe(),
        "limits": {"trials": budget.trials, "time_limit_s": budget.time_limit},
        "command": command,
        "seconds": round(explored.clock.spent_s, 1),
        "trials": [trial.row for trial in trials],
        "front": [trial.number for trial in front_of(judged)],
        "rungs": list(RUNGS),
        "winner": winner and winner.number,
        "closest": near and near.number,
        "cascade": joined and joined.row,
        "certainty": budget.certainty(winner.score, counts["validation"]) if winner else "",
        "test": None,
        "met": winner is not None or joined is not None,
        "again": "",
    }


def deploy(source: Path, best: Path, trial: Trial | None, content: Mapping[str, Any]) -> None:
    """Copy the winner; the manifest of a student, and not of a cascade, gets how it was chosen."""
    shutil.copytree(source, best, ignore=shutil.ignore_patterns(".*"))
    manifest = replace(Manifest.read(best / MANIFEST_NAME), name=BEST)
    if trial:
        notes = {key: value for key, value in manifest.notes.items() if key != "warning"}  # the search has checked it
        candidates = plural(sum(bool(row["rungs"]) for row in content["trials"]), "candidate")
        notes |= {"checked": True, "chosen": f"among {candidates} on validation rows", "trial": trial.number}
        metric = {"name": content["metric"], "value": trial.score.value, "split": "validation"}
        manifest = replace(manifest, notes=notes, metrics=({**metric, "rows": content["rows"]["validation"]},))
    finish(best, manifest)


def measure(explored: Exploration, best: Path, rows: Sequence[Example], results: Path, command: str) -> dict[str, Any]:
    """Measure teacher and winner on test rows, and return what is said of the winner; ``results`` gets all figures."""
    trainer, validation = explored.trainer, explored.trainer.validation
    settings = BenchmarkSettings(
        baselines=False,
        padded_teacher=False,
        threads=validation.threads,
        batch_sizes=(1,),
        time_limit=MEASURING_S,
        metric=validation.metric.name,
    )
    output = BenchmarkOutput(results, force=True, data_name="test", command=command)
    for file in output.files:  # of an earlier start
        file.unlink(missing_ok=True)
    logger.info("measuring the winner on %d test rows ...", len(rows))
    with quiet_stages():
        compute = Compute("cpu", seed=trainer.compute.seed)
        lines = benchmark(trainer.teacher, [best], list(rows), settings, output=output, compute=compute)
    line = next(line for line in lines if line.is_compressed)
    difference = line.difference
    assert difference is not None
    return {
        "value": line.metric,
        "points": difference.value,
        "low": difference.low,
        "high": difference.high,
        "speedup": line.speedups._asdict(),
        "latency_ms": dict(zip(("value", "low", "high"), line.text_p50_ms, strict=True)),
        "rows": len(rows),
    }


def making_again(
    request: Search, explored: Exploration, chosen: Sequence[Trial], joined: Joined | None, stage: Stage
) -> str:
    """Write the recipes of the students that were chosen, and return the commands that make ``best`` of them again."""
    commands: list[Request[Any]] = []
    members: list[str] = []

    def add(kind: type[Request[Any]], **own: Any) -> None:
        known = fields_of(kind)
        commands.append(kind(**{name: one for name, one in request.given(_AGAIN).items() if name in known} | own))

    for number, trial in enumerate(chosen, 1):
        one, shape, rung = f"-{number}" if joined else "", trial.shape, trial.last.rung
        student, model, labels = f"student{one}", f"model{one}" if joined else BEST, f"labels{one}"
        if shape.is_pruned:
            commands.append(Label(**request.given(_LABELLED_BY), output=labels))
            removed = {**pruning_of(shape, rung), "labels": (labels,), "measure": False}
            add(Prune, model=request.teacher, output=student, **removed)
        else:
            name = f"{BEST}{one}.toml"
            recipe, read = explored.trainer.recipe(shape, rung)
            write_atomically(stage.working / name, student_toml(recipe))
            add(Distill, student=stage.output / name, output=student, rows=read)
        int8 = shape.precision == "int8"
        commands.append(Quantize(student, model, method=QUANTIZER) if int8 else Export(student, model))
        members.append(model)
    if joined:
        members.append("teacher-int8")  # what a cascade may lose is against the last model, also where it is left out
        commands.append(Quantize(request.teacher, members[-1], method=QUANTIZER))
        timed: dict[str, Any] = {"device": "cpu", "threads": explored.trainer.validation.threads}
        timed |= {"max_accuracy_drop": explored.budget.max_accuracy_drop, "overlap": Cascade.overlap}
        add(Cascade, models=tuple(members), output=BEST, **timed)
    return " && ".join(one.command for one in commands)
