"""What share of wrong labels an audit finds: labels of real sets are flipped, and looked for.

    python benchmarks/label_noise.py --data-root DIR -o RESULTS.jsonl [--only SET ...] [--encoder minilm-l6]
        [--share 0.05] [--seeds 3] [--rows 3000] [--threads 1]

5% of the labels of a training set become another class: any (``random``), or the one that rows of the class are most
often taken for, by tf-idf on the true labels (``confusable``; of two classes it is the same). Each way ranks labels:
``compress audit`` by confident learning, with tf-idf or with embeddings of the encoder; and the lowest probability of
the label by tf-idf (self-confidence), which does not say how many are wrong. ``found`` counts flips among the suspects,
``found_first`` those among as many first rows as labels were flipped. Labels that were wrong before count as false.
Of each set at most 3,000 rows are drawn. Counts are summed over
the seeds. A line takes the place of the one of the same set, noise and way.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest
from script import provenance, read_options, read_rows, replace_line

from compress.auditing.copies import find_copies
from compress.auditing.label_errors import assign_folds, cross_validated, find_suspects
from compress.benchmarking.baselines import tfidf
from compress.data import infer_labels
from compress.inference.embeddings import embeddings
from compress.inference.threads import using_threads
from compress.models.encoders import open_encoder
from compress.progress import for_terminal
from compress.studies.data import find_set
from compress.tasks import find_task

SETS = {"trec": "trec/TREC", "banking77": "banking77", "sst2": "sst_sentence_level/stsa.binary"}
NOISES = ("random", "confusable")
TASK = find_task("classification")


def main() -> None:
    numbers: dict[str, Any] = {"share": 0.05, "seeds": 3, "rows": 3000, "threads": 1}
    options = read_options(__doc__, data_root=Path, only=(list(SETS),), encoder="minilm-l6", **numbers)
    with using_threads(options.threads):
        for name in options.only:
            for line in of_set(name, options):
                replace_line(options.output, line, "set", "noise", "way")


def of_set(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the line of each noise and way."""
    rows = read_rows(find_set(options.data_root, SETS[name], "train"), "train")
    rows = random.Random(0).sample(rows, min(len(rows), options.rows))
    labels = infer_labels(rows) or ()
    gold, (_, groups) = np.array(TASK.gold(rows, labels, name)), find_copies({"train": rows})
    with for_terminal()(f"Embeddings of {name}", len(rows)) as advance:
        embedded = embeddings(open_encoder(options.encoder), [row.text for row in rows], device="cpu", advance=advance)
    features = {"tf-idf": tfidf.counted(rows)[1], options.encoder: embedded}

    def chances(given: np.ndarray, of: str, seed: int) -> np.ndarray:
        folds = assign_folds(groups, given, seed)
        return np.asarray(TASK.probabilities(cross_validated(features[of], given, TASK, len(labels), folds)))

    nearest = taken_for(chances(gold, "tf-idf", 0), gold)
    for noise in NOISES if len(labels) > 2 else NOISES[:1]:
        counts: dict[str, list[dict[str, int]]] = {}
        for seed in range(options.seeds):
            given, flipped = flip(gold, options.share, nearest if noise == "confusable" else None, len(labels), seed)
            for of in features:
                known = chances(given, of, seed)
                counts.setdefault(f"confident learning, {of}", []).append(confident(known, given, flipped))
                if of == "tf-idf":
                    counts.setdefault(f"self-confidence, {of}", []).append(self_confident(known, given, flipped))
        for way, each in counts.items():
            found = {key: sum(one[key] for one in each) for key in each[0]}
            common = {"set": name, "noise": noise, "way": way, "rows": len(rows), "classes": len(labels)}
            yield {**common, "share": options.share, "seeds": options.seeds, **found, **shares(found), **provenance()}


def taken_for(chances: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return the class that rows of each class are taken for most ``[C]``, by probabilities ``[N, C]``."""
    means = np.stack([chances[gold == label].mean(axis=0) for label in range(chances.shape[1])])
    np.fill_diagonal(means, -1)
    return np.asarray(means.argmax(axis=1))


def flip(
    gold: np.ndarray, share: float, nearest: np.ndarray | None, classes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels ``[N]`` of which a share is wrong, and whether each is: the ``nearest`` class, or any other."""
    draw = np.random.default_rng(seed)
    chosen = draw.choice(len(gold), round(share * len(gold)), replace=False)
    given, flipped = gold.copy(), np.zeros(len(gold), bool)
    others = (gold[chosen] + draw.integers(1, classes, len(chosen))) % classes
    given[chosen], flipped[chosen] = others if nearest is None else nearest[gold[chosen]], True
    return given, flipped


def confident(chances: np.ndarray, given: np.ndarray, flipped: np.ndarray) -> dict[str, int]:
    suspects = find_suspects(chances, given)
    first = suspects.rows[: flipped.sum()]
    return counted(flipped, flipped[first].sum(), len(suspects.rows), flipped[suspects.rows].sum())


def self_confident(chances: np.ndarray, given: np.ndarray, flipped: np.ndarray) -> dict[str, int]:
    """The share of wrong labels is given to it: it stops after as many."""
    first = np.argsort(chances[np.arange(len(given)), given], kind="stable")[: flipped.sum()]
    return counted(flipped, flipped[first].sum(), len(first), flipped[first].sum())


def counted(flipped: np.ndarray, found_first: int, suspects: int, found: int) -> dict[str, int]:
    return {
        "flipped": int(flipped.sum()),
        "found_first": int(found_first),
        "suspects": int(suspects),
        "found": int(found),
    }


def shares(found: dict[str, int]) -> dict[str, Any]:
    """Return recall and precision of the suspects, and the recall of the first rows, with Wilson's 95% intervals."""
    parts = {
        "recall": (found["found"], found["flipped"]),
        "precision": (found["found"], found["suspects"]),
        "recall_first": (found["found_first"], found["flipped"]),
    }
    given = {name: (part, binomtest(*part).proportion_ci(method="wilson")) for name, part in parts.items() if part[1]}
    return {name: {"value": a / b, "low": ends.low, "high": ends.high} for name, ((a, b), ends) in given.items()}


if __name__ == "__main__":
    main()
