"""Which texts the teacher should label: random, uncertain or diverse ones, at equal numbers of teacher calls.

    python benchmarks/selection.py --set NAME --teacher DIR --pool FILE --validation FILE --test FILE --work DIR
        -o RESULTS.jsonl [--calls N ...] [--choice NAME ...] [--seeds 3] [--student cnn] [--steps 1500] [--threads 1]

Rows are chosen at random; or in four rounds, the first random, the others those of which a logistic regression on
hashed 1- and 2-grams of words, fitted on what the teacher said before, is least certain (the smallest difference
between the two likeliest classes; Scheffer et al. 2001, "Active Hidden Markov Models for Information Extraction"); or
as the nearest row of each of so many clusters of the pool (k-means on 64 components of TF-IDF features). The student
learns for so many steps from the chosen rows alone; the validation file chooses its checkpoint. Near-duplicates are
counted (MinHash of pairs of words, estimated Jaccard similarity 0.8). Students of the working folder are used again.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from script import provenance, read_options, read_rows, replace_line
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import pairwise_distances_argmin
from sklearn.preprocessing import normalize

from compress.data import Example
from compress.evaluation.metrics import SeedSample, difference_interval
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import Model
from compress.recipes import load_recipe
from compress.requests.labelling import import_labels, label
from compress.requests.training import distill
from compress.tasks import find_task

ROUNDS = 4
COMPONENTS = 64
REGULARISATION = 1e-5
HASHES, BANDS = 64, 8  # eight bands of eight hashes find pairs of similarity 0.8 in 4 of 5 cases, of 0.5 in 1 of 33
SIMILAR = 0.8


class Pool:
    """The rows of a pool with what the teacher says of them, and the features by which they are chosen."""

    def __init__(self, labels: LabelDir) -> None:
        rows = list(labels)
        self.texts = [example.text for example, _ in rows]
        self.logits = np.stack([logits for _, logits in rows])

    @cached_property
    def hashed(self) -> csr_matrix:
        return HashingVectorizer(n_features=2**18, ngram_range=(1, 2), alternate_sign=False).transform(self.texts)

    @cached_property
    def features(self) -> csr_matrix:
        return TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True).fit_transform(self.texts)

    @cached_property
    def components(self) -> np.ndarray:
        return normalize(TruncatedSVD(COMPONENTS, random_state=0).fit_transform(self.features))

    def near_duplicates(self) -> int:
        """Return how many rows are a near-duplicate of an earlier one."""
        first_of = defaultdict[tuple[int, bytes], list[int]](list)
        signatures = [_signature(text) for text in self.texts]
        found = 0
        for row, signature in enumerate(signatures):
            keys = [(band, part.tobytes()) for band, part in enumerate(np.split(signature, BANDS))]
            others = {other for key in keys for other in first_of[key]}
            if any((signatures[other] == signature).mean() >= SIMILAR for other in others):
                found += 1
                continue
            for key in keys:
                first_of[key].append(row)
        return found


def _signature(text: str) -> np.ndarray:
    """Return the MinHash ``[HASHES]`` of the pairs of words of a text."""
    words = ["", *text.lower().split()]
    pairs = np.array([zlib.crc32(" ".join(pair).encode()) for pair in pairwise(words)] or [0], dtype=np.uint64)
    return ((pairs[:, None] * _FACTORS + _SHIFTS) % _PRIME).min(axis=0)


_PRIME = np.uint64(2**31 - 1)
_FACTORS, _SHIFTS = np.random.default_rng(0).integers(1, 2**31 - 1, (2, HASHES), dtype=np.uint64)


def random_rows(pool: Pool, calls: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(len(pool.texts))[:calls]


def uncertain_rows(pool: Pool, calls: int, seed: int) -> np.ndarray:
    chosen = random_rows(pool, calls // ROUNDS, seed)
    for number in range(2, ROUNDS + 1):
        cheap = SGDClassifier(loss="log_loss", alpha=REGULARISATION, random_state=0)
        cheap.fit(pool.hashed[chosen], pool.logits[chosen].argmax(axis=1))
        two = np.partition(cheap.predict_proba(pool.hashed), -2, axis=1)[:, -2:]
        margin = two[:, 1] - two[:, 0]
        margin[chosen] = np.inf
        chosen = np.concatenate([chosen, np.argsort(margin, kind="stable")[: calls * number // ROUNDS - len(chosen)]])
    return chosen


def diverse_rows(pool: Pool, calls: int, seed: int) -> np.ndarray:
    means = MiniBatchKMeans(calls, init="random", n_init=1, batch_size=8192, max_iter=10, random_state=seed)
    nearest = np.unique(pairwise_distances_argmin(means.fit(pool.components).cluster_centers_, pool.components))
    others = np.setdiff1d(np.arange(len(pool.texts)), nearest)  # of clusters that share their nearest row
    return np.concatenate([nearest, np.random.default_rng(seed).permutation(others)[: calls - len(nearest)]])


CHOICES: dict[str, Callable[[Pool, int, int], np.ndarray]] = {
    "random": random_rows,
    "uncertain": uncertain_rows,
    "diverse": diverse_rows,
}


def main() -> None:
    files: dict[str, Any] = dict.fromkeys(("teacher", "pool", "validation", "test", "work"), Path)
    given = {"calls": [500, 1000, 2000], "choice": (list(CHOICES),), "seeds": 3, "student": "cnn", "steps": 1500}
    options = read_options(__doc__, set=str, **files, **given, threads=1)
    compute = Compute("cpu", options.threads)
    labels = options.work / "labels"
    if not labels.is_dir():
        label(options.teacher, options.pool, labels, device=compute.device, threads=compute.threads)
    opened = LabelDir.open(labels)
    if opened.teacher_sha256 != Model.open(options.teacher).sha256:
        raise SystemExit(f"{labels} are of another teacher ({opened.teacher_name}); give another --work")
    pool = Pool(opened)
    test = read_rows(options.test, "test")
    near_duplicates = pool.near_duplicates()
    for calls in options.calls:
        right: dict[str, list[np.ndarray]] = {}
        for name in options.choice:
            seeds = range(options.seeds)
            right[name] = [taught(pool, name, CHOICES[name], calls, seed, options, test) for seed in seeds]
            line = {
                "study": "selection",
                "set": options.set,
                "pool": len(pool.texts),
                "near_duplicates": near_duplicates,
                "calls": calls,
                "choice": name,
                "student": options.student,
                "steps": options.steps,
                "rows": len(test),
                **judged(right[name], right["random"]),
                **provenance(),
            }
            print(json.dumps({key: line[key] for key in ("calls", "choice", "accuracies", "to_random")}), flush=True)
            replace_line(options.output, line, "set", "calls", "choice")


def taught(
    pool: Pool,
    name: str,
    choose: Callable[[Pool, int, int], np.ndarray],
    calls: int,
    seed: int,
    options: argparse.Namespace,
    test: Sequence[Example],
) -> np.ndarray:
    """Return for each test row whether a student is right ``[N]`` that learned from the chosen rows."""
    folder = options.work / f"{options.student}-{options.steps}-{name}-{calls}-{seed}"
    model, compute = Model.open(options.teacher), Compute("cpu", options.threads, seed)
    if not folder.is_dir():
        columns = [f"logit {number}" for number in range(len(model.labels))]
        table = options.work / "chosen.jsonl"
        rows = choose(pool, calls, seed)
        assert len(set(rows.tolist())) == calls
        lines = [
            {"text": pool.texts[row], **dict(zip(columns, pool.logits[row].tolist(), strict=True))} for row in rows
        ]
        table.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        chosen = import_labels(table, options.work / "chosen", logits=columns, classes=model.labels, force=True)
        recipe = load_recipe("students", options.student)
        recipe = replace(recipe, training=replace(recipe.training, max_steps=options.steps))
        validation = read_rows(options.validation, "validation")
        placed: dict[str, Any] = {"device": "cpu", "threads": options.threads, "seed": seed}
        distill(  # also over what another start began
            model, recipe, folder, labels=(chosen,), validation=validation, overlap="drop", force=True, **placed
        )
    found = load(folder, compute=compute).predict([example.text for example in test])
    gold = find_task("classification").gold(test, model.labels, "test")
    return np.array([model.labels[right] == one["label"] for one, right in zip(found, gold, strict=True)], dtype=int)


def judged(right: Sequence[np.ndarray], random: Sequence[np.ndarray]) -> dict[str, object]:
    """Return accuracies, and the difference to random choice in points: the interval is over seeds and rows."""
    metric = find_task("classification").metric("accuracy")
    ours, theirs = np.stack(right), np.stack(random)
    sample = SeedSample(ours, theirs, np.ones_like(ours[0]), metric, 2)
    low, high = difference_interval([sample])
    return {
        "metric": metric.name,
        "accuracies": ours.mean(axis=1).tolist(),
        "accuracy": float(ours.mean()),
        "to_random": {"points": 100 * float((ours - theirs).mean()), "low": low, "high": high},
    }


if __name__ == "__main__":
    main()
