"""model2vec: a static model distilled from the teacher's encoder, and logistic regression.

``distill_from_model(pca_dims=256)`` passes every subword token of the vocabulary through the encoder once and keeps the
averages, reduced by PCA and weighted by frequency rank. The classifier over its sentence vectors is fitted on the
training rows, as the README shows for tasks of one's own. A pair of texts u, v becomes [u, v, |u - v|, u * v].

Source: Tulkens & van Dongen 2024, https://github.com/MinishLab/model2vec
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compress.benchmarking.baselines import _linear_head
from compress.data.examples import Example
from compress.errors import Unavailable, first_line
from compress.models.model_dir import ModelDir

# 0.8.0 is the last whose requirements allow the transformers of this package.
REQUIRES = {"model2vec": "model2vec[distill]==0.8.0"}
DEVICES = ("cpu",)
NEEDS_TRAIN = True
DIMENSIONS = 256
MAX_LENGTH = 512  # subword tokens, as by default in model2vec
_STATIC_FOLDER = "static"


@dataclass
class Model2VecRunner:
    """model2vec's own ``encode``, which takes texts, then the classifier: a runner whose length can be limited."""

    static: Any
    head: _linear_head.Head
    max_length: int = MAX_LENGTH
    tokenizer_inside: bool = True

    @property
    def parameters(self) -> int:
        return int(self.static.embedding.size) + self.head.parameters

    def prepare(self, examples: Sequence[Example]) -> list[list[str]]:
        return _linear_head.sides(examples)

    def run(self, inputs: list[list[str]]) -> np.ndarray:
        return self.head(_features(self.static, inputs, self.max_length))


def _features(static: Any, sides: list[list[str]], max_length: int) -> np.ndarray:
    return _linear_head.pair_features(
        [np.asarray(static.encode(side, max_length=max_length), dtype=np.float32) for side in sides]
    )


def build(directory: Path, model: ModelDir, train: Sequence[Example], gold: np.ndarray) -> None:
    try:
        from model2vec.distill import distill_from_model
    except ImportError as error:  # without the extra "distill"
        raise Unavailable(
            f"model2vec cannot distil here ({error}); type pip install '{REQUIRES['model2vec']}'"
        ) from None
    from compress.models.prunable_units import has_heads

    loaded: Any = model.load()
    if not has_heads(loaded):
        raise Unavailable(f"model2vec distils a transformer's encoder, which {model.name} does not have")
    try:
        static = distill_from_model(loaded.base_model, model.tokenizer, device="cpu", pca_dims=DIMENSIONS)
    except (ValueError, KeyError, AttributeError, NotImplementedError) as error:
        raise Unavailable(f"model2vec cannot distil {model.name}: {first_line(error)}") from None
    directory.mkdir(parents=True, exist_ok=True)
    # safetensors writes the memory of an array as it lies, and PCA leaves it by columns: it would be read back jumbled.
    static.embedding = np.ascontiguousarray(static.embedding)
    static.save_pretrained(directory / _STATIC_FOLDER)
    features = _features(static, _linear_head.sides(train), MAX_LENGTH)
    _linear_head.fit_linear_head(features, gold, model.task, len(model.labels)).save(directory)


def start(directory: Path, *, threads: int, device: str) -> Model2VecRunner:
    from model2vec import StaticModel

    static = StaticModel.from_pretrained(directory / _STATIC_FOLDER)
    return Model2VecRunner(static, _linear_head.Head.load(directory))
