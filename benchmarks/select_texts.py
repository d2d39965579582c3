"""Which texts of a pool to label: those that ``compress label --select`` chooses, beside random ones.

    python benchmarks/select_texts.py --data-root DIR --work DIR -o RESULTS.jsonl [--only SET ...]
        [--budget 250 500 1000 2000] [--rounds 8] [--seeds 3] [--encoder minilm-l6] [--threads 1]

The pool is the training set, each text once and none of the test set; its labels answer in place of a teacher. Two
models learn from the chosen rows, and are judged on the whole test set: logistic regression (C = 10) on tf-idf of words
and pairs of words (``tfidf``), and on embeddings of the encoder as it is (``frozen``), as in ``compress finetune
--few-shot-frozen``. Intervals are over draws and test rows, those of differences paired. Embeddings lie in the working
folder. A line takes the place of the one of the same set, budget, way and model.

CLINC150 is the intents in scope. GoEmotions is the rows with one label, of which at most 10,000 are the pool and the
rows of ``dev`` the test.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from script import provenance, read_options, read_rows, replace_line

from compress.benchmarking.baselines import tfidf
from compress.benchmarking.baselines._linear_head import fit_linear_head
from compress.data import Example, infer_labels, row_key
from compress.data.examples import plain_text
from compress.data.near_copies import near_pairs
from compress.evaluation.metrics import percentiles
from compress.inference.embeddings import embeddings
from compress.inference.threads import using_threads
from compress.labelling.selection import choose_texts, round_sizes
from compress.models.encoders import open_encoder
from compress.progress import for_terminal
from compress.studies.data import find_set
from compress.tasks import find_task

SETS = {"banking77": "banking77", "clinc150": "clinc150/data_full", "goemotions": "goemotions", "trec": "trec/TREC"}
STRENGTH = 10.0
RESAMPLES = 2000
TASK = find_task("classification")


def main() -> None:
    numbers: dict[str, Any] = {"budget": [250, 500, 1000, 2000], "rounds": 8, "seeds": 3, "threads": 1}
    options = read_options(__doc__, data_root=Path, work=Path, only=([*SETS],), encoder="minilm-l6", **numbers)
    options.work.mkdir(parents=True, exist_ok=True)
    with using_threads(options.threads):
        for name in options.only:
            for line in of_set(name, options):
                replace_line(options.output, line, "set", "budget", "way", "model")


def read_set(name: str, root: Path) -> tuple[list[Example], list[Example]]:
    """Return the pool, each text once, and the test set."""
    if name == "goemotions":
        pool, test = (one_label(root / "goemotions" / f"{split}.tsv") for split in ("train", "dev"))
        pool = random.Random(0).sample(pool, 10_000)
    else:
        files = {split: find_set(root, SETS[name], split) for split in ("train", "test")}
        pool, test = ([row for row in read_rows(file, role) if row.label != "oos"] for role, file in files.items())
    known = {row_key(row) for row in test}
    return [*{row_key(row): row for row in reversed(pool) if row_key(row) not in known}.values()][::-1], test


def one_label(file: Path) -> list[Example]:
    lines = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    return [Example(text, None, labels) for text, labels, _ in lines if "," not in labels]


def of_set(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the line of each budget, way and model."""
    pool, test = read_set(name, options.data_root)
    labels = infer_labels(pool) or ()
    gold = np.array([labels.index(str(row.label)) for row in pool])
    right_answers = np.array([labels.index(row.label) if row.label in labels else -1 for row in test])
    texts = [*map(plain_text, pool)]
    pairs = len(near_pairs(texts)[0])
    vectorizer, counts = tfidf.counted(pool)
    features = {
        "tfidf": (counts, vectorizer.transform([row.text for row in test])),
        "frozen": tuple(embedded(name, role, rows, options) for role, rows in (("pool", pool), ("test", test))),
    }
    for budget in options.budget:
        right: dict[tuple[str, str], list[np.ndarray]] = {}
        for way, rounds in (("random", 1), ("uncertainty", options.rounds)):
            for seed in range(options.seeds):
                sizes = round_sizes(budget, rounds, 1)
                chosen = np.concatenate([*choose_texts(texts, sizes, seed, lambda rows: (rows, gold[rows]))])
                for model, (of_pool, of_test) in features.items():
                    used = np.flatnonzero(abs(of_pool[chosen]).sum(axis=0))  # other weights would be 0
                    head = fit_linear_head(of_pool[chosen][:, used], gold[chosen], TASK, len(labels), (STRENGTH,))
                    answers = TASK.predictions(head(of_test[:, used]))
                    right.setdefault((way, model), []).append(answers == right_answers)
        sizes = {"pool": len(pool), "classes": len(labels), "near_pairs": pairs, "rows": len(test)}
        for (way, model), own in right.items():
            found = judged(np.array(own, float), np.array(right["random", model], float))
            line = {"set": name, "budget": budget, "way": way, "model": model, **found}
            print(json.dumps({key: line[key] for key in ("set", "budget", "way", "model", "by_seed")}), flush=True)
            yield {**line, **sizes, "rounds": options.rounds, "encoder": options.encoder, **provenance()}


def embedded(name: str, role: str, rows: Sequence[Example], options: argparse.Namespace) -> np.ndarray:
    """Return the embeddings of rows ``[N, D]``, from the working folder where they lie there."""
    place = options.work / f"{name}-{options.encoder}-{role}.npy"
    if not place.is_file():
        with for_terminal()(f"Embeddings of {name}, {role}", len(rows)) as advance:
            encoder, texts = open_encoder(options.encoder), [row.text for row in rows]
            np.save(place, embeddings(encoder, texts, device="cpu", advance=advance))
    found: np.ndarray = np.load(place, allow_pickle=False)
    assert len(found) == len(rows), f"{place} is of other rows; delete it"
    return found


def judged(ours: np.ndarray, random: np.ndarray) -> dict[str, Any]:
    """Return the accuracy by what is right ``[S, N]``, and the difference to random rows, with intervals."""
    generator = np.random.default_rng(0)
    seeds, rows = ours.shape
    drawn = [(generator.integers(0, seeds, seeds), generator.integers(0, rows, rows)) for _ in range(RESAMPLES)]

    def interval(values: np.ndarray) -> dict[str, float]:
        low, high = percentiles(np.array([values[some].mean(axis=0)[of].mean() for some, of in drawn]))
        return {"value": float(values.mean()), "low": low, "high": high}

    return {
        "seeds": seeds,
        "accuracy": interval(ours),
        "by_seed": ours.mean(axis=1).round(4).tolist(),
        "to_random": interval(ours - random),
    }


if __name__ == "__main__":
    main()
