"""The teacher's input embeddings, averaged over the subword tokens of a text, and logistic regression.

It has the teacher's vocabulary and none of its layers, so it says what the layers are for. A pair of texts u, v becomes
[u, v, |u - v|, u * v].

Source: Shen et al. 2018, "Baseline Needs More Love" (arXiv:1805.09843); pairs: Conneau et al. 2017 (arXiv:1705.02364).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from compress.benchmarking.baselines import _linear_head
from compress.data.examples import Example
from compress.data.tokenization import maximum_length
from compress.errors import Unavailable
from compress.inference.runners import Runner
from compress.models.model_dir import Model
from compress.tasks import Task

RUNTIME = "numpy"
_TOKENIZER_NAME = "tokenizer.json"
_TABLE_NAME = "embeddings.safetensors"

Ids = list[list[int]]


@dataclass(frozen=True)
class Pooling:
    """From texts to averages of embeddings, ``table`` ``[V, D]``; ``tokenizer`` cuts texts to the teacher's length."""

    tokenizer: Any
    table: np.ndarray

    def tokenize(self, examples: Sequence[Example]) -> list[Ids]:
        """Return the token ids of the texts, and of the second texts if there are any."""
        return [
            [encoding.ids for encoding in self.tokenizer.encode_batch_fast(side, add_special_tokens=False)]
            for side in _linear_head.sides(examples)
        ]

    def features(self, sides: list[Ids]) -> np.ndarray:
        """Return ``[B, D]``, or ``[B, 4 D]`` for pairs."""
        empty = np.zeros(self.table.shape[1], dtype=np.float32)
        return _linear_head.pair_features(
            [np.stack([self.table[ids].mean(axis=0) if ids else empty for ids in side]) for side in sides]
        )


def fit(directory: Path, train: Sequence[Example], gold: np.ndarray, task: Task, classes: int, teacher: Model) -> None:
    tokenizer: Any = copy.deepcopy(teacher.tokenizer)
    embedding: Any = teacher.network.get_input_embeddings()
    table = embedding.weight.detach().numpy()
    if len(table) < len(tokenizer):
        raise Unavailable(
            f"{teacher.name} keeps {len(table)} embeddings for {len(tokenizer)} subword tokens; none is its own"
        )
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.enable_truncation(maximum_length(tokenizer, teacher.config))
    tokenizer.backend_tokenizer.save(str(directory / _TOKENIZER_NAME))
    save_file({"embeddings": np.ascontiguousarray(table)}, directory / _TABLE_NAME)
    pooling = _open(directory)
    _linear_head.fit_linear_head(pooling.features(pooling.tokenize(train)), gold, task, classes).save(directory)


def _open(directory: Path) -> Pooling:
    from tokenizers import Tokenizer

    table = load_file(directory / _TABLE_NAME)["embeddings"]
    return Pooling(Tokenizer.from_file(str(directory / _TOKENIZER_NAME)), table)


def start(directory: Path, *, threads: int, device: str) -> Runner:
    """Read the table, the tokenizer and the classifier; NumPy's threads are set by the process's environment."""
    pooling, head = _open(directory), _linear_head.Head.load(directory)

    def run(inputs: list[Ids]) -> np.ndarray:
        return head(pooling.features(inputs))

    return Runner(pooling.tokenize, run, parameters=pooling.table.size + head.parameters)
