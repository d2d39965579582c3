"""Predict with a model directory, torch or ONNX: labels and probabilities, scores, or tags of words."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import Example
from compress.data.tokenization import by_sentence, maximum_length, word_counts
from compress.inference.batching import logits_of
from compress.inference.compute import Compute, resolve_device
from compress.inference.open_runtime import open_runtime
from compress.models.model_dir import ModelDir

Prediction = dict[str, Any]


def predictor(
    model: ModelDir | str | Path, *, compute: Compute = Compute()
) -> Callable[[Sequence[Example]], list[Prediction]]:
    """Return a function from examples to predictions.

    A prediction is ``{"label", "probability"}``, or ``{"score"}`` for regression; of a tagger it is ``{"words", "tags",
    "probabilities"}``, one tag a word, null for a word that was cut off.
    """
    opened = ModelDir.open(model)
    run = open_runtime(opened.path, threads=compute.threads, device=resolve_device(compute.device))
    tokenizer = opened.load_tokenizer()
    limit = maximum_length(tokenizer, opened.config)

    def predict(examples: Sequence[Example]) -> list[Prediction]:
        logits = logits_of(examples, run, tokenizer, max_length=limit, task=opened.task)
        if opened.task == "regression":
            return [{"score": round(float(row[0]), 4)} for row in logits]
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        if opened.task == "tagging":
            of_sentences = by_sentence(probabilities, word_counts(examples))
            return [_tagged(e, rows, opened.labels) for e, rows in zip(examples, of_sentences, strict=True)]
        return [
            {"label": opened.labels[row.argmax()], "probability": round(float(row.max()), 4)} for row in probabilities
        ]

    return predict


def _tagged(example: Example, probabilities: np.ndarray, labels: Sequence[str]) -> Prediction:
    best = [None if np.isnan(row).any() else int(row.argmax()) for row in probabilities]
    return {
        "words": list(example.words),
        "tags": [None if tag is None else labels[tag] for tag in best],
        "probabilities": [
            None if tag is None else round(float(row[tag]), 4) for row, tag in zip(probabilities, best, strict=True)
        ],
    }
