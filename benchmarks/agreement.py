"""Whether cascades keep the promise of ``compress cascade --agree``, and how much the fast member answers then.

    python benchmarks/agreement.py --data-root DIR --work DIR -o RESULTS.jsonl [--only banking77 clinc150]
        [--student cnn bilstm] [--agree 0.98 0.99] [--splits 100] [--threads 1]

A teacher and students in int8 are made of some of the questions of Banking77 and of CLINC150, and of those of TREC
without labels. The others, which no model has read, are parted at random into validation and test, halves of them,
again and again. The threshold of a member is chosen on the validation rows. A promise is broken where fewer of the
answers on the test rows are the teacher's than was promised: also by chance, as test rows are as few. Validation rows
that are drawn with replacement from all rows are a sample of a whole whose agreement is known: there a broken promise
is no chance of the test, and at most 5% may be. Confidences are compared: the largest probability, which cascades use,
and its difference to the second, of probabilities or logits.

CLINC150's questions out of scope are in no set: of them it is said how well the confidence tells them from the others,
and how many the teacher answers. What was made lies in the working folder, and the same command goes on; a line takes
the place of the one of the same set, student, share and confidence.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta
from script import provenance, read_options, read_rows, replace_line

from compress.cascades.cascade import AGREEMENT_LEVELS
from compress.data import Example, ExampleSource, row_key
from compress.evaluation.acceptance import accept_from
from compress.evaluation.metrics import confidence, percentiles, probabilities
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.progress import for_terminal
from compress.recipes import load_recipe
from compress.requests.compression import quantize
from compress.requests.training import distill, finetune
from compress.studies.data import find_set

CHECKPOINT_ROWS, RESAMPLES = 500, 2000
# Name -> the files of a set, its splits, how many of its training rows models read, and what is out of scope.
SETS = {
    "banking77": ("banking77", ("train", "test"), 6000, ""),
    "clinc150": ("clinc150/data_full", ("train", "validation", "test"), 15000, "oos"),
}
Rows = dict[str, list[Example]]


def highest(logits: np.ndarray) -> np.ndarray:
    return confidence(logits)


def probability_margin(logits: np.ndarray) -> np.ndarray:
    first, second = np.sort(probabilities(logits), axis=1)[:, :-3:-1].T
    return np.asarray(first - second)


def logit_margin(logits: np.ndarray) -> np.ndarray:
    first, second = np.sort(logits.astype(float), axis=1)[:, :-3:-1].T
    return np.asarray(first - second)


CONFIDENCES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "probability": highest,
    "probability-margin": probability_margin,
    "logit-margin": logit_margin,
}


def main() -> None:
    options = read_options(
        __doc__,
        data_root=Path,
        work=Path,
        only=([*SETS],),
        student=(["cnn", "bilstm"],),
        agree=[0.98, 0.99],
        splits=100,
        threads=1,
    )
    options.work.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        of_set(name, options)


def of_set(name: str, options: argparse.Namespace) -> None:
    """Make the models of a set, and write a line for each student, share and confidence."""
    rows = parted(name, options.data_root)
    teacher = make(name, "teacher", rows, options)
    last = {role: logits_of(teacher, rows[role], options) for role in ("unread", "outside")}
    for student in options.student:
        model = make(name, f"{student}-int8", rows, options)
        own = {role: logits_of(model, rows[role], options) for role in ("unread", "outside")}
        same = own["unread"].argmax(axis=1) == last["unread"].argmax(axis=1)
        for promised in options.agree:
            for measure, of in CONFIDENCES.items():
                sure = {role: of(found) for role, found in own.items() if len(found)}
                line = {
                    "set": name,
                    "student": student,
                    "promised": promised,
                    "confidence": measure,
                    **{f"{role}_rows": len(found) for role, found in rows.items()},
                    "agreement_of_all": share(int(same.sum()), len(same)),
                    **over_splits(sure, same, promised, options.splits),
                    **provenance(),
                }
                replace_line(options.output, line, "set", "student", "promised", "confidence")
                told = {key: line[key] for key in ("coverage", "broken", "broken_of_whole", "outside") if line[key]}
                print(name, student, promised, measure, told, flush=True)


def parted(name: str, root: Path) -> Rows:
    """Return train, the rows that choose checkpoints, those that no model reads, those out of scope, and the pool.

    Each text is there once, in the first of the sets that has it.
    """
    folder, splits, most, outside = SETS[name]
    own = {role: read_rows(find_set(root, folder, role), role) for role in splits}
    every = {row_key(row): row for role in splits for row in own[role]}
    first = {row_key(row): row for row in own["train"] if row.label != outside}
    train = [*first.values()]
    random.Random(0).shuffle(train)
    read = {row_key(row) for row in train[:most]}
    others = [row for key, row in every.items() if key not in read]
    questions = [row for row in read_rows(find_set(root, "trec/TREC", "train"), "train") if row_key(row) not in every]
    return {
        "checkpoint": train[:CHECKPOINT_ROWS],
        "train": train[CHECKPOINT_ROWS:most],
        "unread": [row for row in others if row.label != outside],
        "outside": [row for row in others if row.label == outside],
        "pool": [Example(row.text) for row in [*train[CHECKPOINT_ROWS:most], *questions]],
    }


def make(name: str, model: str, rows: Rows, options: argparse.Namespace) -> Model:
    """Return a model of a set, made or as it was made before."""
    folder = options.work / f"{name}-{model}"
    if folder.is_dir():
        return Model.open(folder)
    shared: dict[str, Any] = {"device": "cpu", "threads": options.threads, "progress": for_terminal()}
    held = {"validation": rows["checkpoint"], **shared}
    if model == "teacher":
        return finetune(load_recipe("teachers", "minilm-l6"), folder, train=rows["train"], **held)
    student = model.removesuffix("-int8")
    if student != model:
        return quantize(make(name, student, rows, options), folder, batch_sizes=(1,), **held)
    text = ExampleSource(rows["pool"], "questions")
    return distill(make(name, "teacher", rows, options), student, folder, unlabeled=text, **held)


def logits_of(model: Model, rows: list[Example], options: argparse.Namespace) -> np.ndarray:
    if not rows:
        return np.zeros((0, len(model.labels)))
    return np.asarray(load(model, compute=Compute("cpu", options.threads)).runner.logits(rows))


def over_splits(
    sure: Mapping[str, np.ndarray], same: np.ndarray, promised: float, splits: int, seed: int = 0
) -> dict[str, Any]:
    """Return how often the promise breaks, how much is answered, and what becomes of rows out of scope.

    Args:
        sure: the confidences of the rows that no model read, ``"unread"`` ``[N]``, and out of scope, ``"outside"``.
        same: whether the answers to the former are the last member's, ``[N]``.
    """
    generator, own, outside = np.random.default_rng(seed), sure["unread"], sure.get("outside")
    rows = len(own)
    found: dict[str, list[float]] = {"coverage": [], "agreement": [], "outside": []}
    none = broken = whole = 0
    for _ in range(splits):
        order = generator.permutation(rows)
        validation, test = order[: rows // 2], order[rows // 2 :]
        level = accept_from(own[validation], same[validation], promised, count=AGREEMENT_LEVELS)
        drawn = generator.integers(0, rows, rows // 2)
        of_whole = accept_from(own[drawn], same[drawn], promised, count=AGREEMENT_LEVELS)
        whole += of_whole is not None and bool(same[own >= of_whole.threshold].mean() < promised)
        threshold = np.inf if level is None else level.threshold
        answered = own[test] >= threshold
        none += level is None
        broken += bool(answered.any()) and bool(same[test][answered].mean() < promised)
        found["coverage"].append(float(answered.mean()))
        if answered.any():
            found["agreement"].append(float(same[test][answered].mean()))
        if outside is not None:
            found["outside"].append(float((outside < threshold).mean()))
    return {
        "splits": splits,
        "validation_rows": rows // 2,
        "none": none,
        "broken": share(broken, splits),
        "broken_of_whole": share(whole, splits),
        "coverage": spread(found["coverage"]),
        "agreement": spread(found["agreement"]),
        "outside": outside is not None
        and {"to_the_last": spread(found["outside"]), "auroc": area(own, outside, generator)},
    }


def share(count: int, rows: int) -> dict[str, float]:
    """Return a share with its 95% interval (Clopper and Pearson 1934)."""
    low = float(beta.ppf(0.025, count, rows - count + 1)) if count else 0.0
    high = float(beta.ppf(0.975, count + 1, rows - count)) if count < rows else 1.0
    return {"value": count / rows, "low": low, "high": high}


def spread(values: list[float]) -> dict[str, float] | None:
    """Return the mean over the splits, and between which values 95% of them lie."""
    if not values:
        return None
    low, high = percentiles(np.array(values))
    return {"value": float(np.mean(values)), "low": low, "high": high}


def area(inside: np.ndarray, outside: np.ndarray, generator: np.random.Generator) -> dict[str, float]:
    """Return how often a row in scope is surer than one out of scope (AUROC), with a bootstrap interval over rows."""
    values = []
    for number in range(RESAMPLES + 1):
        some = [one if not number else one[generator.integers(0, len(one), len(one))] for one in (inside, outside)]
        ordered, other = np.sort(some[0]), some[1]
        above = len(ordered) - (np.searchsorted(ordered, other, "left") + np.searchsorted(ordered, other, "right")) / 2
        values.append(float(above.mean() / len(ordered)))
    low, high = percentiles(np.array(values[1:]))
    return {"value": values[0], "low": low, "high": high}


if __name__ == "__main__":
    main()
