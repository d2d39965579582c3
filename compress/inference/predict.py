"""Stage: use a model, torch or ONNX, in the runtime that opens its directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress import plugins
from compress.data import Example
from compress.data.tokenization import maximum_length
from compress.data.word_alignment import by_sentence, word_counts
from compress.inference.batching import logits_of
from compress.inference.cores import available_cores
from compress.models.model_dir import ModelDir

Answer = dict[str, Any]


def predictor(
    model: ModelDir | str | Path, *, device: str = "auto", threads: int = 0
) -> Callable[[Sequence[Example]], list[Answer]]:
    """Return a function from examples to answers.

    An answer is ``{"label", "probability"}``, or ``{"score"}`` for regression; of a tagger it is ``{"words", "tags",
    "probabilities"}``, one tag a word, null for a word that was cut off.
    """
    from compress.inference.compute import resolve_device

    opened = ModelDir.open(model)
    start = plugins.find("runtimes", "onnxruntime" if opened.is_onnx else "torch").function
    run = start(opened.path, threads=threads or len(available_cores()), device=resolve_device(device))
    tokenizer = opened.load_tokenizer()
    limit = maximum_length(tokenizer, opened.config)

    def answers(examples: Sequence[Example]) -> list[Answer]:
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

    return answers


def _tagged(example: Example, probabilities: np.ndarray, labels: Sequence[str]) -> Answer:
    known = [not np.isnan(row).any() for row in probabilities]
    best = [row.argmax() for row in probabilities]
    return {
        "words": list(example.words),
        "tags": [labels[tag] if is_known else None for tag, is_known in zip(best, known, strict=True)],
        "probabilities": [
            round(float(row.max()), 4) if is_known else None for row, is_known in zip(probabilities, known, strict=True)
        ],
    }
