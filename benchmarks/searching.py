"""Is a search worth its time? The same budget for a search, for what it begins with, and for random shapes.

    python benchmarks/searching.py --set NAME --teacher DIR --unlabeled FILE --train FILE --validation FILE --test FILE
        --work DIR -o RESULTS.jsonl [--max-accuracy-drop 1] [--minutes 15] [--seed 0 ...] [--only search ...]

* ``search`` is what ``compress search`` does. It begins with the committed students cnn, minilm-3, ngram and bilstm,
  whole and in int8: ``recipes`` is what would be chosen of these alone, as far as there was time for them, and ``cnn``
  the first of them. The three are of the same trainings and timings; the minutes of the two are those of training;
* ``random`` draws shapes from the same space, leaves out those that miss a limit of speed or size, and trains each of
  the others for all steps of its recipe, as long as the search may take; a training that ends later does not count.

Each way chooses by the same rule from what it has trained, a student or a cascade. What it chose lies in
``WORK/models``, where ``compress benchmark`` measures it. Text is labelled before the time begins. What is finished is
not made again.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from script import provenance, read_options, replace_line

from compress.data import content_sha256
from compress.inference.compute import Compute
from compress.models.manifest import MANIFEST_NAME, Manifest
from compress.models.model_dir import Model
from compress.models.output_dir import finish
from compress.requests.training import Search
from compress.searching.exploration import Exploration, SearchClock
from compress.searching.making import ValidationRows
from compress.searching.search import SearchRows, check_data, content_of, join, trainer_of
from compress.searching.space import PRECISIONS, Shape, ShapeSampler, space_for
from compress.searching.trials import LAST, SearchBudget, Trial, choose

METHODS = ("search", "random")


def main() -> None:
    files: dict[str, Any] = dict.fromkeys(("teacher", "unlabeled", "train", "validation", "test", "work"), Path)
    given = {"max_accuracy_drop": 1.0, "minutes": 15.0, "seed": [0], "only": (list(METHODS),)}
    options = read_options(__doc__, set=str, **files, **given)
    teacher = Model.open(options.teacher)
    files = {role: str(getattr(options, role)) for role in ("unlabeled", "train", "validation", "test")}
    request = Search(str(options.teacher), str(options.work / "found"), **files, overlap="drop")
    rows = check_data(teacher, request)
    (options.work / "labels").mkdir(parents=True, exist_ok=True)
    for seed, method in itertools.product(options.seed, options.only):
        folder = options.work / f"{method}-{seed}"
        if (folder / "done").is_file():
            continue
        # Of a start that was killed: its time would not be that of the others.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for way, found in run(teacher, rows, method, Compute("cpu", 1, seed=seed), folder, options):
            line = {"set": options.set, "method": way, "seed": seed, **found}
            line |= {"test_sha256": content_sha256(rows.test), **provenance()}
            replace_line(options.output, line, "set", "method", "seed")
        (folder / "done").touch()


def run(
    teacher: Model, rows: SearchRows, method: str, compute: Compute, folder: Path, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Spend the minutes in one of the ways, and yield what came of it and of its beginning."""
    budget = SearchBudget(max_accuracy_drop=options.max_accuracy_drop, time_limit=60 * options.minutes)
    trainer = trainer_of(teacher, folder, rows, compute, labels=options.work / "labels")
    space = space_for(teacher.config)
    sampler = ShapeSampler(folder / "sampler.json", space, compute.seed)
    with SearchClock(folder / "clock.json", budget.seconds) as clock:
        explored = Exploration(budget, sampler, trainer, clock)
        if method == "search":
            explored.run()
        else:
            train_whole(explored, random_shapes(space, compute.seed))
        spent_s = clock.spent_s
    (models := options.work / "models").mkdir(exist_ok=True)
    tested = ValidationRows(teacher, rows.test, rows.metric, 1, compute.seed)
    yield method, found_by(explored, folder, spent_s, tested, rows, models / f"{method}-{compute.seed}")
    if method == "search":
        for way, begun in beginnings(explored).items():
            seconds = sum(trial.last.seconds for trial in begun.trials)
            (place := folder / way).mkdir(exist_ok=True)
            yield way, found_by(begun, place, seconds, tested, rows, models / f"{way}-{compute.seed}")


def beginnings(explored: Exploration) -> dict[str, Exploration]:
    """Return a search as if it had trained nothing but the committed students, and cnn alone, for all steps at once."""
    whole = [replace(trial, rungs=[trial.last]) for trial in explored.whole if trial.shape.precision == "int8"]
    cnn = [trial for trial in whole if trial.shape.family == "cnn"]
    return {way: replace(explored, trials=own) for way, own in (("recipes", whole), ("cnn", cnn)) if own}


def found_by(
    explored: Exploration, folder: Path, spent_s: float, tested: ValidationRows, rows: SearchRows, place: Path
) -> dict[str, Any]:
    """Choose a student or a cascade, keep it at ``place``, and return what was found, judged on test rows too."""
    trial, trainer = choose(explored.judged, explored.budget), explored.trainer
    joined = join(explored, folder, trial)
    chosen = {place.name: trainer.deployed(trial.shape, trial.last.rung)} if trial else {}
    if joined:
        chosen[f"{place.name}-cascade"] = joined.model.path
    for name, path in chosen.items():
        target = place.with_name(name)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(path, target, ignore=shutil.ignore_patterns(".*"))
        finish(target, replace(Manifest.read(path / MANIFEST_NAME), name=name))
    content = content_of(explored, trial, joined, rows, "")
    judged = [
        {**one.row, "test": asdict(tested.judge(tested.predicted(trainer.deployed(one.shape, one.last.rung))))}
        for one in explored.judged
    ]
    if joined:
        content["cascade"] |= {"test": asdict(tested.judge(tested.predicted(joined.model.path)))}
    kept = ("teacher_value", "rows", "budget", "winner", "cascade")
    return {
        "limit_s": explored.budget.seconds,
        "spent_s": round(spent_s, 1),
        "timed": len(explored.trials),
        "trainings": sum(len(one.rungs) for one in explored.judged),
        "teacher_test_value": tested.teacher_value,
        **{name: content[name] for name in kept},
        "trials": judged,
    }


def train_whole(explored: Exploration, shapes: Iterator[Shape]) -> None:
    """Train shapes that meet the limits for all of their steps, while there is time."""
    seen = set()
    for shape in shapes:
        if explored.clock.left_s() <= 0:
            return
        if shape.key in seen:
            continue
        seen.add(shape.key)
        timing = explored.trainer.time(shape)
        trial = Trial(len(explored.trials) + 1, shape, timing)
        explored.trials.append(trial)
        # What takes longer even by an estimate that is known to be low would not count.
        least_s = explored.trainer.expected_seconds(shape, timing.latency_ms) * 9
        if timing.fault or explored.budget.faults(timing) or least_s > explored.clock.left_s():
            continue
        trained = explored.trainer.train(shape, LAST)
        if explored.clock.left_s() >= 0:
            trial.add(trained)


def random_shapes(space: dict[str, dict[str, tuple[Any, ...]]], seed: int) -> Iterator[Shape]:
    """Draw shapes without end: a family, each of its options and a precision, all equally likely."""
    draws = random.Random(seed)
    while True:
        family = draws.choice(list(space))
        values = {name: draws.choice(own) for name, own in space[family].items()}
        yield Shape(family, values, draws.choice(PRECISIONS))


if __name__ == "__main__":
    main()
