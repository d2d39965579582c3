"""Predict with a model directory, torch or ONNX: labels and probabilities, scores, or tags of words.

An ONNX directory needs ONNX Runtime and ``tokenizers`` alone: nothing here imports torch or transformers for it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import Example
from compress.data.tokenization import by_sentence, maximum_length, word_counts
from compress.errors import CompressError
from compress.inference.batching import logits_of
from compress.inference.compute import Compute, resolve_device
from compress.inference.open_runtime import open_runtime
from compress.models.model_dir import ModelDir

Prediction = dict[str, Any]
Text = str | tuple[str, str] | Example


class Classifier:
    """A model that is loaded and predicts; made by :func:`load`.

    Args:
        model: an open model directory, torch or ONNX.
        compute: device and threads. ``auto`` is the CPU for an ONNX model.
    """

    def __init__(self, model: ModelDir, compute: Compute) -> None:
        self.labels = model.labels
        self.task = model.task
        device = compute.device
        if not model.is_onnx:
            device = resolve_device(device)
        elif device == "auto":
            device = "cpu"
        self._run = open_runtime(model.path, threads=compute.threads, device=device)
        self._tokenizer = model.open_tokenizer()
        self._max_length = maximum_length(self._tokenizer, model.config)

    def predict(self, texts: Sequence[Text]) -> list[Prediction]:
        """Return one prediction a text, in order.

        A prediction is ``{"label", "probability"}``, or ``{"score"}`` for regression; of a tagger it is ``{"words",
        "tags", "probabilities"}``, one tag a word, null for a word that was cut off.

        Args:
            texts: texts, pairs of texts as tuples, or examples; for a tagger a text is words with spaces between.

        Raises:
            CompressError: it is a single text, or texts and pairs are mixed.
        """
        if isinstance(texts, str):
            raise CompressError("predict takes a list of texts; for one text type predict([text])")
        examples = [_example(text) for text in texts]
        if not examples:
            return []
        if len({example.text_pair is None for example in examples}) > 1:
            raise CompressError("some of these rows are texts and some are pairs; predict them apart")
        logits = logits_of(examples, self._run, self._tokenizer, max_length=self._max_length, task=self.task)
        if self.task == "regression":
            return [{"score": round(float(row[0]), 4)} for row in logits]
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        if self.task == "tagging":
            of_sentences = by_sentence(probabilities, word_counts(examples))
            return [_tagged(e, rows, self.labels) for e, rows in zip(examples, of_sentences, strict=True)]
        best = probabilities.argmax(axis=1)
        highest = probabilities.max(axis=1).tolist()
        return [
            {"label": self.labels[index], "probability": round(probability, 4)}
            for index, probability in zip(best.tolist(), highest, strict=True)
        ]


def load(model: ModelDir | str | Path, *, compute: Compute = Compute()) -> Classifier:
    """Open a model directory, torch or ONNX, for prediction.

    Raises:
        CompressError: it is no classifier or does not open, or a torch model lacks the extra ``train``.
    """
    return Classifier(ModelDir.open(model), compute)


def _example(text: Text) -> Example:
    if isinstance(text, Example):
        return text
    return Example(text) if isinstance(text, str) else Example(*text)


def _tagged(example: Example, probabilities: np.ndarray, labels: Sequence[str]) -> Prediction:
    best = [None if np.isnan(row).any() else int(row.argmax()) for row in probabilities]
    return {
        "words": list(example.words),
        "tags": [None if tag is None else labels[tag] for tag in best],
        "probabilities": [
            None if tag is None else round(float(row[tag]), 4) for row, tag in zip(probabilities, best, strict=True)
        ],
    }
