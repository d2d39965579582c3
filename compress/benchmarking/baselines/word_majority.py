"""The tag that each word has most often: what tagging is worth without looking at the words around it.

A word is known by its letters with case folded. It gives the logarithm of each tag's share among the word's
occurrences, to which the shares of all words together are added once; a word that training has not seen gets those of
the words that occur there once, which resemble it most.

Source: the most-frequent-class baseline of Jurafsky and Martin, "Speech and Language Processing" (3rd edition),
section 17.2; for unknown words Baayen and Sproat 1996 (aclanthology.org/J96-2001).
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from compress.data.examples import Example
from compress.inference.runners import Runner
from compress.models.model_dir import Model
from compress.tasks import Task

RUNTIME = "numpy"
_WORDS_NAME = "words.json"
_TABLE_NAME = "tags.safetensors"


def fit(directory: Path, train: Sequence[Example], gold: np.ndarray, task: Task, classes: int, teacher: Model) -> None:
    occurrences = [word.casefold() for example in train for word in example.words]
    words = sorted(set(occurrences))
    rows = {word: row for row, word in enumerate(words)}
    counts = np.zeros((len(words), classes))
    for word, tag in zip(occurrences, gold.astype(int), strict=True):
        counts[rows[word], tag] += 1
    overall = (counts.sum(axis=0) + 1) / (counts.sum() + classes)
    once = counts[counts.sum(axis=1) == 1].sum(axis=0)
    shares = np.vstack([counts, once]) + overall
    (directory / _WORDS_NAME).write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    table = np.log(shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
    save_file({"table": table}, directory / _TABLE_NAME)


def start(directory: Path, *, threads: int, device: str) -> Runner:
    """Read the table ``[V + 1, C]``, whose last row is for unknown words; looking up takes one thread."""
    table = load_file(directory / _TABLE_NAME)["table"]
    words = json.loads((directory / _WORDS_NAME).read_text(encoding="utf-8"))
    rows = {word: row for row, word in enumerate(words)}

    def look_up(examples: Sequence[Example]) -> list[int]:
        return [rows.get(word.casefold(), len(rows)) for example in examples for word in example.words]

    return Runner(look_up, table.__getitem__, parameters=table.size)
