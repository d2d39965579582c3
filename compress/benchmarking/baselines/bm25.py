"""Okapi BM25 of pairs: words of the first text that the second has too, the rare ones most.

``sum over words of idf * tf (k + 1) / (tf + k (1 - b + b length / mean length))`` with k = 1.2 and b = 0.75. Documents
are the different second texts of the training rows, and ``idf = log(1 + (N - n + 0.5) / (n + 0.5))``. Scores are one
straight line of it, or one logistic curve of classes, fitted to the training rows.

Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond"; idf as in Lucene.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from compress.benchmarking.baselines import _linear_head
from compress.data.examples import Example
from compress.inference.runners import Runner
from compress.models.model_dir import Model
from compress.tasks import Task

RUNTIME = "numpy"
SATURATION, LENGTH_SHARE = 1.2, 0.75
_WORD = re.compile(r"\w+")
_VOCABULARY_NAME, _COUNTS_NAME = "vocabulary.json", "counts.safetensors"


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def fit(directory: Path, train: Sequence[Example], gold: np.ndarray, task: Task, classes: int, teacher: Model) -> None:
    documents = [_words(text) for text in sorted({row.text_pair or "" for row in train})]
    found = Counter(word for words in documents for word in {*words})
    names = sorted(found)
    lengths = np.array([len(documents), sum(map(len, documents)) / len(documents)], dtype=np.float64)
    (directory / _VOCABULARY_NAME).write_text(json.dumps(names, ensure_ascii=False), encoding="utf-8")
    save_file({"counts": np.array([found[name] for name in names]), "lengths": lengths}, directory / _COUNTS_NAME)
    features = _scorer(directory)(train)
    _linear_head.fit_linear_head(features, gold, task, classes).save(directory)


def _scorer(directory: Path) -> Any:
    names = json.loads((directory / _VOCABULARY_NAME).read_text(encoding="utf-8"))
    stored = load_file(directory / _COUNTS_NAME)
    found, (count, mean) = dict(zip(names, stored["counts"].tolist(), strict=True)), stored["lengths"].tolist()

    def score(row: Example) -> float:
        words = _words(row.text_pair or "")
        counts, length = Counter(words), SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * len(words) / max(mean, 1))
        total = 0.0
        for word in _words(row.text):
            if times := counts[word]:
                rarity = np.log1p((count - found.get(word, 0) + 0.5) / (found.get(word, 0) + 0.5))
                total += rarity * times * (SATURATION + 1) / (times + length)
        return total

    def features(examples: Sequence[Example]) -> np.ndarray:
        """Return ``[B, 1]``."""
        return np.array([[score(row)] for row in examples], dtype=np.float32)

    return features


def start(directory: Path, *, threads: int, device: str) -> Runner:
    """Read the counts of words and the line; one thread is enough for it."""
    head, features = _linear_head.Head.load(directory), _scorer(directory)
    return Runner(list, lambda rows: head(features(rows)), parameters=head.parameters, tokenizer_inside=True)
