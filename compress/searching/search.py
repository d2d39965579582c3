"""Search stage: find the student that meets a budget, and measure it on rows that took no part in finding it.

The pool is labelled once. Shapes are timed before they are trained, trained by successive halving, and judged on
validation rows. The result holds the winner, the front, all trials and a page.
"""

import json
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from compress.data import (
    Example,
    ExampleSource,
    LabelledData,
    TextSource,
    check_roles,
    row_key,
)
from compress.errors import CompressError
from compress.evaluation.metrics import Metric
from compress.inference.compute import Compute, resolve_device
from compress.inference.predict import check_gold
from compress.labelling.label_dir import LabelDir
from compress.models.fitted_rows import FITTING_ROLES, TRAINING_ROLES, check_unseen, tell_seen
from compress.models.model_dir import ModelDir
from compress.models.output_dir import write_atomically
from compress.models.resumption import is_whole
from compress.progress import Progress, logger, silent
from compress.reporting.rendering import write_page
from compress.reporting.search_page import view
from compress.requests import FileList, fields_of
from compress.requests.labelling import label
from compress.requests.searching import Search, SearchLimits
from compress.searching.budget import SearchBudget
from compress.searching.clock import SearchClock
from compress.searching.commands import BEST, making_again
from compress.searching.exploration import Exploration
from compress.searching.findings import content_of, deploy, deploy_cascade, measure
from compress.searching.joining import join
from compress.searching.judging import ValidationRows
from compress.searching.making import Maker
from compress.searching.sampler import ShapeSampler, import_optuna
from compress.searching.selection import choose
from compress.searching.shapes import ShapeTimer
from compress.searching.space import space_for
from compress.searching.trials import Trainer
from compress.training.training_data import LabelledPool

CONTENT_NAME, FRONT_NAME, TRIALS_NAME = "search.json", "front.jsonl", "trials.jsonl"
TEST_NAME, SAMPLER_NAME = "results.jsonl", "sampler.json"
SHAPE_TEXTS = 50_000  # whose vocabulary small students are timed with


# Fields of the search that its winner is made with again.
_AGAIN = (
    *("teacher", "unlabeled", "train", "validation", "metric", "overlap", "seed", "device", "threads", "precision"),
    *("text_column", "text_pair_column", "label_column", "label_map", "format"),
)


def search(request: Search) -> Path:
    """Search for the student that meets a budget, and return the directory of what was found.

    ``best`` in it is the winner, a model or a cascade, where one met the budget on validation rows. ``search.json``
    says whether that is so and test rows do not refute it. Timing takes as many threads as trainings, by default one.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    import_optuna()
    budget = SearchBudget(**{name: getattr(request, name) for name in fields_of(SearchLimits)})
    model, progress = ModelDir.open(request.teacher), request.progress
    rows = check_data(model, request)
    compute = replace(request.compute, device=resolve_device(request.device))
    with request.begin(
        {"teacher": model},
        data=rows.described,
        unlabeled=rows.unlabeled,
        train=rows.train,
        validation=rows.validation,
        test=rows.test,
        metric=rows.metric.name,
        dropped=rows.left_out,
        threads=compute.threads,
    ) as stage:
        check_gold(model, rows.validation, "validation", compute)
        labels = label_rows(model, stage.scratch, rows, compute, progress)
        timer, trainer = timer_and_trainer(model, stage.scratch, rows, labels, compute, progress)
        sampler = ShapeSampler(stage.scratch / SAMPLER_NAME, space_for(model.config), compute.seed)
        with SearchClock(stage.scratch / "clock.json", budget.seconds) as clock:
            explored = Exploration(budget, sampler, timer, trainer, clock)
            explored.run()
        trial = choose(explored.judged, budget)
        joined = join(explored, stage.scratch, trial)
        content = content_of(
            explored, trial, joined, {role: len(own) for role, own in rows.named.items()}, request.command
        )
        best = stage.working / BEST
        shutil.rmtree(best, ignore_errors=True)  # of a start that was killed here
        for file in stage.working.glob(f"{BEST}*.toml"):
            file.unlink()
        if joined is not None:
            deploy_cascade(joined, best)
        elif trial is not None:
            deploy(explored.trainer.deployed(trial.shape, trial.last.rung), best, trial, content)
        if chosen := joined.students if joined else [trial] if trial else []:
            content["again"] = making_again(explored, chosen, joined, stage.working, stage.output, _typed(request))
            if rows.test:
                test = measure(explored, best, rows.test, stage.working / TEST_NAME, request.command)
                refuted = budget.is_refuted(test["high"], test["speedup"]["high"], test["latency_ms"]["low"])
                left_out = [found["left_out"]["rows"] for role, found in rows.left_out.items() if role in FITTING_ROLES]
                content |= {"test": test, "met": not refuted, "left_out": sum(left_out)}
        by_number = {row["trial"]: row for row in content["trials"]}
        lines = {CONTENT_NAME: [json.dumps(content, indent=1)], TRIALS_NAME: map(json.dumps, content["trials"])}
        lines[FRONT_NAME] = [json.dumps(by_number[number]) for number in content["front"]]
        for name, written in lines.items():
            write_atomically(stage.working / name, "".join(f"{line}\n" for line in written))
        write_page(view(content), stage.working)
        stage.finish(kind="search", recipe={"budget": budget.asked, **budget.ends}, notes={"met": content["met"]})
    return stage.output


def _typed(request: Search) -> dict[str, Any]:
    """Return the options that the winner is made with again; data in memory is called FILE."""
    typed = request.options(_AGAIN)
    if overlap := typed.pop("overlap", None):
        typed[f"{overlap}_overlap"] = True
    named = (str, int, float, FileList)
    return {
        name: value if isinstance(value, named) else str(value.path) if isinstance(value, ModelDir) else "FILE"
        for name, value in typed.items()
    }


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

    @property
    def named(self) -> dict[str, Sequence[Example]]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


def check_data(model: ModelDir, request: Search) -> SearchRows:
    """Check everything about the request that can be known before the work.

    Raises:
        CompressError: students of this teacher are not searched for, or rows do not fit it.
    """
    if model.is_onnx:
        raise CompressError(f"{model.path} is an ONNX model, from which no student starts; give its torch directory")
    if model.task.no_search:
        raise CompressError(f"{model.path} {model.task.no_search}")
    labelled, unlabeled = request.labelled, cast(TextSource, request.open_text())
    test = request.read("test")
    for role, rows in (("train", labelled.train), ("validation", labelled.validation)):
        if not rows:
            raise CompressError(f"a search needs labelled rows of {role}; give --{role} FILE")
    metric = model.task.metric(labelled.metric, len(model.labels))
    roles: dict[str, Any] = {"train": labelled.train, "unlabeled": unlabeled, "validation": labelled.validation}
    checked = check_roles({**roles, **({"test": test} if test else {})}, labelled.overlap)
    logger.info("rows: %s", checked.describe())
    sets: dict[str, Any] = checked.sets
    for role in ("train", "validation", "test"):
        model.task.gold(sets.get(role, ()), model.labels, role)
    check_unseen([model], sets["validation"])
    check_unseen([model], sets.get("test", ()), "test", TRAINING_ROLES)  # the benchmark refuses them, hours later
    tell_seen([model], sets.get("test", ()), {"train": labelled.train, "validation": labelled.validation})
    pool = sets["unlabeled"].without(frozenset(map(row_key, sets["train"])))
    if next(iter(pool), None) is None:
        raise CompressError(
            f"all rows of {unlabeled.name} are rows of train too; give text that has others with --unlabeled FILE"
        )
    own = (sets["train"], sets["validation"], sets.get("test", ()))
    return SearchRows(pool, *own, metric, checked.left_out, checked.described())


def label_rows(
    model: ModelDir, folder: Path, rows: SearchRows, compute: Compute, progress: Progress = silent
) -> list[LabelDir]:
    """Return labels of the pool and of the gold rows, made in ``folder`` where they are not there yet."""
    labels = []
    placed: dict[str, Any] = {"device": compute.device, "threads": compute.threads}
    for name, source in {"pool": rows.unlabeled, "train": ExampleSource(rows.train, "train")}.items():
        place = folder / f"{name}-labels"
        if not is_whole(place):
            label(model, source, place, **placed, progress=progress)
        labels.append(LabelDir.open(place))
    return labels


def timer_and_trainer(
    model: ModelDir,
    folder: Path,
    rows: SearchRows,
    labels: Sequence[LabelDir],
    compute: Compute,
    progress: Progress = silent,
) -> tuple[ShapeTimer, Trainer]:
    """Return what times shapes and what trains them, which keep their results in ``folder``.

    Args:
        labels: of the pool and of the gold rows, see :func:`label_rows`.
    """
    pool = LabelledPool((labels[0],))

    def texts() -> Iterable[Example]:
        return chain(pool.sample(SHAPE_TEXTS), rows.train[:SHAPE_TEXTS])

    threads = compute.threads or 1
    # Not on train, whose texts may be of other lengths, on which speed-ups depend.
    timed_on = random.Random(compute.seed).sample(rows.validation, len(rows.validation))
    for place in (shapes := folder / "shapes", trained := folder / "trained"):
        place.mkdir(exist_ok=True)
    validation = ValidationRows(model, rows.validation, rows.metric, threads, compute.seed)
    labelled = LabelledData(list(rows.train), list(rows.validation), rows.metric.name)
    maker = Maker(model, tuple(labels), labelled, texts, compute, progress)
    timer = ShapeTimer(model, shapes, maker, timed_on, threads)
    return timer, Trainer(model, trained, maker, validation, compute)
