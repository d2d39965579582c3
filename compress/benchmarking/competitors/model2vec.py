"""model2vec: a static model distilled from the teacher's encoder, and logistic regression.

``distill_from_model(pca_dims=256)`` passes every subword token of the vocabulary through the encoder once and keeps the
averages, reduced by PCA and weighted by frequency rank. The classifier over its sentence vectors is fitted on the
training rows, as the README shows for tasks of one's own. A pair of texts u, v becomes [u, v, |u - v|, u * v].

Source: Tulkens & van Dongen 2024, https://github.com/MinishLab/model2vec
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.benchmarking.baselines import _linear_head
from compress.data.examples import Example
from compress.errors import Unavailable, first_line
from compress.inference.runners import Runner
from compress.models.model_dir import Model

# 0.8.0 is the last whose requirements allow the transformers of this package.
REQUIRES = {"model2vec": "model2vec[distill]==0.8.0"}
DEVICES = ("cpu",)
NEEDS_TRAIN = True
DIMENSIONS = 256
MAX_LENGTH = 512  # subword tokens, as by default in model2vec
_STATIC_FOLDER = "static"


def _features(static: Any, sides: list[list[str]], max_length: int) -> np.ndarray:
    return _linear_head.pair_features(
        [np.asarray(static.encode(side, max_length=max_length), dtype=np.float32) for side in sides]
    )


def build(directory: Path, model: Model, train: Sequence[Example], gold: np.ndarray) -> None:
    try:
        from model2vec.distill import distill_from_model
    except ImportError as error:  # without the extra "distill"
        raise Unavailable(
            f"model2vec cannot distil here ({error}); type pip install '{REQUIRES['model2vec']}'"
        ) from None
    from compress.models.components import has_heads

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


def start(directory: Path, *, threads: int, device: str) -> Runner:
    """model2vec's own ``encode``, which takes texts, then the classifier."""
    from model2vec import StaticModel

    static = StaticModel.from_pretrained(directory / _STATIC_FOLDER)
    head = _linear_head.Head.load(directory)

    def run(sides: list[list[str]]) -> np.ndarray:
        return head(_features(static, sides, runner.max_length))

    weights = int(static.embedding.size) + head.parameters
    runner = Runner(_linear_head.sides, run, weights, tokenizer_inside=True, max_length=MAX_LENGTH)
    return runner
