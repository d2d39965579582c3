"""What the floor of steps for few rows is worth: recipes as they are, and with their passes alone (no floor).

    python benchmarks/few_rows.py --data-root DIR --work DIR -o RESULTS.jsonl [--only SET ...] [--student bilstm]
        [--threads 0]

Of each set some rows are labelled, and the other texts of its training set are the pool. The teacher is fine-tuned by
both plans; the student learns by both from the teacher of the recipe as it is. 500 more rows choose the checkpoints;
what is said is of the set's test rows. What was made lies in the working folder, and the same command goes on; a line
takes the place of the one of the same set, model and plan.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from script import provenance, read_options, read_rows, replace_line

from compress.data import Example, ExampleSource, row_key
from compress.evaluation.metrics import interval, paired_difference
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.progress import for_terminal
from compress.recipes import load_recipe
from compress.requests.training import distill, finetune
from compress.studies.data import find_set
from compress.tasks import find_task

VALIDATION_ROWS = 500
PLANS = ("floor", "passes")  # the recipe as it is, and with its passes alone
# Name -> the set, its splits for training and for the test, and how many rows are labelled.
SETS = {
    "sst2-200": ("sst_sentence_level/stsa.binary", "train", "dev", 200),
    "ag-news-500": ("ag_news_10k", "train", "test", 500),
    "trec-1200": ("trec/TREC", "train", "test", 1200),
    "banking77-5000": ("banking77", "train", "test", 5000),
}


def main() -> None:
    options = read_options(
        __doc__, data_root=Path, work=Path, only=(list(SETS),), teacher="minilm-l6", student="bilstm", threads=0
    )
    for name in options.only:
        for line in of_set(name, options):
            replace_line(options.output, line, "set", "model", "plan")


def of_set(name: str, options: argparse.Namespace) -> list[dict[str, object]]:
    """Make and judge the teachers and students of a set."""
    set_name, train_split, test_split, rows = SETS[name]
    test = read_rows(find_set(options.data_root, set_name, test_split), "test")
    held_out = {row_key(example) for example in test}
    others = read_rows(find_set(options.data_root, set_name, train_split), "train")
    others = [example for example in others if row_key(example) not in held_out]
    random.Random(0).shuffle(others)  # files may be sorted by label
    validation, train = others[:VALIDATION_ROWS], others[VALIDATION_ROWS : VALIDATION_ROWS + rows]
    known = {row_key(example) for example in [*validation, *train]}
    pool = [Example(other.text) for other in others if row_key(other) not in known]
    data: dict[str, Any] = {"train": train, "validation": validation, "overlap": "drop"}
    shared: dict[str, Any] = {**data, "device": "cpu", "threads": options.threads, "progress": for_terminal()}
    text = ExampleSource(pool, "pool")
    made: dict[tuple[str, str], Model] = {}
    for plan in PLANS:
        recipe = planned(load_recipe("teachers", options.teacher), plan)
        folder = options.work / f"{name}-{recipe.name}-{plan}"
        made["teacher", plan] = Model.open(folder) if folder.is_dir() else finetune(recipe, folder, **shared)
    for plan in PLANS:
        recipe = planned(load_recipe("students", options.student), plan)
        folder = options.work / f"{name}-{recipe.name}-{plan}"
        teacher = made["teacher", "floor"]
        there = folder.is_dir()
        student = Model.open(folder) if there else distill(teacher, recipe, folder, unlabeled=text, **shared)
        made[recipe.name, plan] = student
    right = {key: correct(model, test) for key, model in made.items()}
    common = {"set": name, "train": len(train), "validation": len(validation), "pool": len(pool), "rows": len(test)}
    return [
        {
            **common,
            "model": key[0],
            "plan": key[1],
            **{note: made[key].manifest.notes[note] for note in ("planned_steps", "steps", "seconds", "precision")},
            **judged(right[key], right[key[0], "passes"]),
            **provenance(),
        }
        for key in made
    ]


def planned(recipe, plan: str):
    """Return a recipe as it is, or with its passes alone."""
    by_passes = replace(recipe.training, min_steps=0, min_steps_per_class=0)
    return recipe if plan == "floor" else replace(recipe, training=by_passes)


def correct(model: Model, test: Sequence[Example]) -> np.ndarray:
    """Return for each row whether a model's label is right ``[N]``."""
    found = load(model, compute=Compute("cpu")).predict([example.text for example in test])
    return np.array([one["label"] == example.label for one, example in zip(found, test, strict=True)], dtype=int)


def judged(right: np.ndarray, by_passes: np.ndarray) -> dict[str, object]:
    """Return the accuracy with its interval, and the difference to the same model by passes alone, in points."""
    metric, gold = find_task("classification").metric("accuracy"), np.ones_like(right)
    low, high = interval(right, gold, metric=metric, classes=2)
    difference = paired_difference(right, by_passes, gold, metric=metric, classes=2)
    return {"accuracy": float(right.mean()), "low": low, "high": high, "to_passes": asdict(difference)}


if __name__ == "__main__":
    main()
