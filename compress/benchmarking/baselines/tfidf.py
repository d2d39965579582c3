"""Words and pairs of words, weighted by tf-idf, and logistic regression; ridge regression for scores.

The 50,000 most frequent words and bigrams, punctuation among them, with 1 + log of their counts. A pair of texts is
one text with a mark between them.

Source: Wang & Manning 2012, "Baselines and Bigrams" (aclanthology.org/P12-2018).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from compress.benchmarking.baselines import _linear_head
from compress.data.examples import Example
from compress.errors import CompressError
from compress.inference.runners import Runner
from compress.models.model_dir import Model
from compress.tasks import Task

RUNTIME = "scikit-learn"
REQUIRES = {"sklearn.feature_extraction.text": "scikit-learn>=1.9"}
FEATURES = 50_000
_MARK = " \u00b6 "
_VOCABULARY_NAME = "vocabulary.json"
_WEIGHTS_NAME = "idf.safetensors"


def _texts(examples: Sequence[Example]) -> list[str]:
    return [e.text if e.text_pair is None else e.text + _MARK + e.text_pair for e in examples]


def _vectorizer(vocabulary: dict[str, int] | None = None) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        ngram_range=(1, 2),
        token_pattern=r"\w+|[^\w\s]",
        sublinear_tf=True,
        dtype=np.float32,
        max_features=None if vocabulary else FEATURES,
        vocabulary=vocabulary,
    )


def counted(rows: Sequence[Example]) -> tuple[Any, Any]:
    """Return a vectorizer of the words of rows, and their features, sparse ``[N, V]``."""
    vectorizer = _vectorizer()
    try:
        return vectorizer, vectorizer.fit_transform(_texts(rows))
    except ValueError:
        raise CompressError("the training rows hold no word, so that tf-idf has nothing to count") from None


def fit(directory: Path, train: Sequence[Example], gold: np.ndarray, task: Task, classes: int, teacher: Model) -> None:
    vectorizer, features = counted(train)
    head = _linear_head.fit_linear_head(features, gold, task, classes)
    words = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.__getitem__)
    (directory / _VOCABULARY_NAME).write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    save_file({"idf": vectorizer.idf_.astype(np.float32)}, directory / _WEIGHTS_NAME)
    head.save(directory)


def start(directory: Path, *, threads: int, device: str) -> Runner:
    words = json.loads((directory / _VOCABULARY_NAME).read_text(encoding="utf-8"))
    vectorizer = _vectorizer({word: column for column, word in enumerate(words)})
    vectorizer.idf_ = load_file(directory / _WEIGHTS_NAME)["idf"]
    head = _linear_head.Head.load(directory)

    def prepare(examples: Sequence[Example]) -> Any:
        return vectorizer.transform(_texts(examples))

    return Runner(prepare, head, parameters=head.parameters + vectorizer.idf_.size)
