"""Search stage: find the student that meets a budget, and measure it on rows that took no part in finding it.

The pool is labelled once. Shapes are timed before they are trained, trained by successive halving, and judged on
validation rows. The result holds the winner, the front, all trials and a page.
"""

import json
import random
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from compress.benchmarking.benchmark import BenchmarkOutput, benchmark
from compress.benchmarking.results.schema import Measurement
from compress.data import (
    Example,
    ExampleSource,
    LabelledData,
    TextSource,
    check_roles,
    describe_rows,
    encode_gold,
    row_key,
)
from compress.errors import CompressError
from compress.evaluation.metrics import Metric, find_metric
from compress.inference.compute import Compute, resolve_device
from compress.labelling.label import label
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import MANIFEST_NAME, Manifest
from compress.models.model_dir import ModelDir
from compress.models.output_dir import finish, write_atomically
from compress.models.stage import Stage
from compress.progress import Progress, logger, silent
from compress.recipes import BenchmarkSettings
from compress.recipes.writing import student_toml
from compress.reporting.search_page import write_report
from compress.searching.budget import SearchBudget, SearchSettings
from compress.searching.clock import SearchClock
from compress.searching.exploration import Exploration
from compress.searching.halving import RUNGS
from compress.searching.judging import ValidationRows
from compress.searching.sampler import ShapeSampler, import_optuna
from compress.searching.selection import choose, closest, front_of
from compress.searching.shapes import ShapeTimer
from compress.searching.space import space_for
from compress.searching.trials import Trainer, Trial, quiet_stages
from compress.training.distill import DistillationData
from compress.training.training_data import LabelledPool

BEST, CONTENT_NAME, FRONT_NAME, TRIALS_NAME = "best", "search.json", "front.jsonl", "trials.jsonl"
RECIPE_NAME, TEST_NAME, STUDY_NAME = "best.toml", "results.jsonl", "search.db"
SHAPE_TEXTS = 50_000  # whose vocabulary small students are timed with
MEASURING_S = 60.0


@dataclass(frozen=True)
class SearchData:
    """Text and labels of a search.

    Args:
        unlabeled: text that the teacher labels once, for all students.
        labelled: ``train`` is learned from too; ``validation`` selects checkpoints, students and the winner.
        test: rows that only the winner is measured on, at the end; without any there is no unbiased figure.
    """

    unlabeled: TextSource
    labelled: LabelledData
    test: Sequence[Example] = ()


def search(
    teacher: ModelDir | str | Path,
    output: str | Path,
    data: SearchData,
    *,
    budget: SearchBudget = SearchBudget(),
    settings: SearchSettings = SearchSettings(),
    compute: Compute = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> Path:
    """Search for the student that meets a budget, and return the directory of what was found.

    ``best`` in it is the winner, a model directory, where a student met the budget on validation rows. ``search.json``
    says whether that is so and test rows do not refute it.

    Args:
        teacher: a torch classifier or regression; it is what speed-ups are against.
        compute: device, threads and seed of trainings; timing takes as many threads, by default one.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    import_optuna()
    budget.check()
    settings.check()
    model = ModelDir.open(teacher)
    rows = _checked(model, data)
    compute = replace(compute, device=resolve_device(compute.device))
    with Stage.begin(
        "search",
        output,
        parents={"teacher": model},
        settings={
            "budget": budget.asked,
            "limits": settings.request,
            "metric": rows.metric.name,
            "unlabeled": sorted(map(str, data.unlabeled.identity)),
            "dropped": rows.dropped,
            "threads": compute.threads,
        },
        data=describe_rows(rows.named),
        seed=compute.seed,
        force=force,
    ) as stage:
        explored = _explored(model, stage, rows, budget, settings, compute, progress)
        winner = choose(explored.judged, budget)
        trial = None if winner is None else explored.judged[winner]
        content = _content(model, explored, trial, rows, compute)
        best = stage.working / BEST
        shutil.rmtree(best, ignore_errors=True)  # of a start that was killed here
        if trial is not None:
            recipe, read = explored.trainer.planned(trial.shape, trial.last.rung)
            write_atomically(stage.working / RECIPE_NAME, student_toml(recipe))
            _deploy(explored.trainer.deployed(trial.shape, trial.last.rung), best, trial, content)
            few = f" --rows {read}" if read else ""
            student = f"{settings.again}{few} --student {Path(output) / RECIPE_NAME} -o student"
            content["again"] = f"{student} && {trial.shape.deploying}"
            if rows.test:
                test = _measured(model, best, stage.working / TEST_NAME, rows, settings.command, compute)
                refuted = budget.is_refuted(test["high"], test["speedup"]["high"])
                content |= {"test": test, "met": not refuted}
        lines = {CONTENT_NAME: [json.dumps(content, indent=1)]}
        lines[TRIALS_NAME] = [json.dumps(row) for row in content["trials"]]
        lines[FRONT_NAME] = [json.dumps(row) for row in content["trials"] if row["trial"] in content["front"]]
        for name, written in lines.items():
            write_atomically(stage.working / name, "".join(f"{line}\n" for line in written))
        write_report(content, stage.working)
        stage.finish(
            kind="search", recipe={"budget": budget.asked, **settings.request}, notes={"met": trial is not None}
        )
    return Path(output)


@dataclass(frozen=True)
class _Rows:
    """Checked rows by role."""

    unlabeled: TextSource
    train: Sequence[Example]
    validation: Sequence[Example]
    test: Sequence[Example]
    metric: Metric
    dropped: dict[str, int]

    @property
    def named(self) -> dict[str, Sequence[Example]]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


def _checked(model: ModelDir, data: SearchData) -> _Rows:
    """Check everything about the request that can be known before the work."""
    if model.is_onnx:
        raise CompressError(f"{model.path} is an ONNX model, from which no student starts; give its torch directory")
    if model.task == "tagging":
        raise CompressError(
            f"{model.path} tags words, and a search compares classifiers of texts; use 'compress distill' with "
            "--student bilstm-tagger or minibert-3"
        )
    labelled = data.labelled
    for role, rows in (("train", labelled.train), ("validation", labelled.validation)):
        if not rows:
            raise CompressError(f"a search needs labelled rows of {role}; give --{role} FILE")
    metric = find_metric(labelled.metric, task=model.task, classes=len(model.labels))
    roles: dict[str, Any] = {"train": labelled.train, "unlabeled": data.unlabeled, "validation": labelled.validation}
    checked = check_roles({**roles, **({"test": data.test} if data.test else {})}, drop_overlap=labelled.drop_overlap)
    logger.info("rows: %s", checked.describe())
    sets: dict[str, Any] = checked.sets
    for role in ("train", "validation", "test"):
        encode_gold(sets.get(role, ()), model.labels, task=model.task, name=role)
    pool = sets["unlabeled"].without(frozenset(map(row_key, sets["train"])))
    return _Rows(pool, sets["train"], sets["validation"], sets.get("test", ()), metric, checked.dropped)


def _explored(
    model: ModelDir,
    stage: Stage,
    rows: _Rows,
    budget: SearchBudget,
    settings: SearchSettings,
    compute: Compute,
    progress: Progress,
) -> Exploration:
    """Label the text, and go through all rungs."""
    sources = {"pool": rows.unlabeled, "train": ExampleSource(rows.train, "train")}
    labels = []
    for name, source in sources.items():
        folder = stage.scratch / f"{name}-labels"
        if not folder.is_dir():
            label(model, source, folder, compute=compute, progress=progress)
        labels.append(LabelDir.open(folder))
    pool = LabelledPool((labels[0],))

    def texts() -> Iterable[Example]:
        return chain(pool.sample(SHAPE_TEXTS), rows.train[:SHAPE_TEXTS])

    threads = compute.threads or 1
    mixed = [*rows.validation, *rows.train]
    timed_on = random.Random(compute.seed).sample(mixed, len(mixed))
    for folder in (shapes := stage.scratch / "shapes", trained := stage.scratch / "trained"):
        folder.mkdir(exist_ok=True)
    validation = ValidationRows(model, rows.validation, rows.metric, threads, compute.seed)
    data = DistillationData(
        labels=labels, labelled=LabelledData(list(rows.train), list(rows.validation), rows.metric.name)
    )
    with closing(ShapeSampler(stage.scratch / STUDY_NAME, space_for(model.config), compute.seed)) as sampler:
        explored = Exploration(
            budget,
            settings,
            sampler,
            ShapeTimer(model, shapes, texts, timed_on, threads, compute.seed),
            Trainer(model, trained, data, validation, compute, progress),
            SearchClock(stage.scratch / "clock.json", settings.seconds),
            validation.judge(validation.reference).value,
        )
        explored.run()
    return explored


def _content(
    model: ModelDir, explored: Exploration, winner: Trial | None, rows: _Rows, compute: Compute
) -> dict[str, Any]:
    """Return what was found, as JSON values."""
    budget, judged, trials = explored.budget, explored.judged, explored.trials
    timed = [trial for trial in trials if not trial.timing.fault]
    near = None if winner else closest(judged, budget)
    fastest = max(timed, key=lambda trial: trial.timing.speedup, default=None)
    return {
        "teacher": model.name,
        "metric": rows.metric.name,
        "teacher_value": explored.teacher_value,
        "rows": {role: len(own) for role, own in rows.named.items()},
        "threads": compute.threads or 1,
        "seed": compute.seed,
        "budget": budget.asked,
        "asked": budget.describe(),
        "limits": explored.settings.request,
        "command": explored.settings.command,
        "seconds": round(explored.clock.spent_s, 1),
        "trials": [trial.row for trial in trials],
        "front": [judged[index].number for index in front_of(judged)],
        "rungs": list(RUNGS),
        "winner": winner.number if winner else None,
        "closest": judged[near].number if near is not None else None,
        "fastest": fastest.number if fastest else None,
        "certainty": budget.certainty(winner.score, len(rows.validation)) if winner else "",
        "test": None,
        "met": winner is not None,
        "again": "",
    }


def _deploy(source: Path, best: Path, trial: Trial, content: dict[str, Any]) -> None:
    """Copy the winner, and write into its manifest how it was chosen."""
    shutil.copytree(source, best, ignore=shutil.ignore_patterns(".*"))
    manifest = Manifest.read(best / MANIFEST_NAME)
    notes = {key: value for key, value in manifest.notes.items() if key != "warning"}  # the search has checked it
    candidates = sum(bool(row["rungs"]) for row in content["trials"])
    notes |= {"checked": True, "chosen": f"among {candidates} candidates on validation rows", "trial": trial.number}
    rows = content["rows"]["validation"]
    metric = {"name": content["metric"], "value": trial.score.value, "split": "validation", "rows": rows}
    finish(best, replace(manifest, name=BEST, notes=notes, metrics=(metric,)))


def _measured(
    model: ModelDir, best: Path, results: Path, rows: _Rows, command: str, compute: Compute
) -> dict[str, Any]:
    """Measure teacher and winner on the test rows, and return what is said of the winner."""
    settings = BenchmarkSettings(
        baselines=False,
        padded_teacher=False,
        threads=compute.threads or 1,
        batch_sizes=(1,),
        time_limit=MEASURING_S,
        metric=rows.metric.name,
    )
    output = BenchmarkOutput(results, force=True, data_name="test", command=command)
    logger.info("measuring the winner on %d test rows ...", len(rows.test))
    with quiet_stages():
        lines = benchmark(
            model, [best], list(rows.test), settings, output=output, compute=Compute("cpu", seed=compute.seed)
        )
    line: Measurement = next(line for line in lines if line.model == BEST)
    difference = line.difference
    assert difference is not None
    return {
        "value": line.metric,
        "points": difference.value,
        "low": difference.low,
        "high": difference.high,
        "speedup": line.speedups._asdict(),
        "rows": len(rows.test),
    }
