"""Predict with a model directory, torch or ONNX: labels and probabilities, scores, or tags of words.

An ONNX directory needs ONNX Runtime and ``tokenizers`` alone: nothing here imports torch or transformers for it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from compress.data import Example
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.tokenization import by_sentence, maximum_length, word_counts
from compress.data.truncation import counting
from compress.errors import CompressError
from compress.evaluation.softmax import probabilities as softmax
from compress.inference.batching import Run, logits_of
from compress.inference.cascade import ask_in_turn
from compress.inference.compute import Compute, resolve_device
from compress.inference.open_runtime import open_runtime
from compress.models.cascade_dir import CascadeDir, open_model
from compress.models.manifest import MANIFEST_NAME
from compress.models.model_dir import ModelDir
from compress.progress import Advance

Prediction = dict[str, Any]
Text = str | tuple[str, str] | Example


def acceptance_thresholds(model: ModelDir) -> np.ndarray | None:
    """Return the confidence from which the prediction of each class is accepted ``[C]``; infinite where it never is.

    None where ``compress calibrate --accept-at`` wrote no such thing into the manifest.

    Raises:
        CompressError: the manifest has something else there.
    """
    if (noted := model.manifest.notes.get("acceptance")) is None:
        return None
    try:
        overall = {"overall": True, "class": False}[noted["by"]]
        found = [noted["threshold"] if overall else noted["thresholds"][label] for label in model.labels]
        if not all(value is None or type(value) in (int, float) and 0 <= value <= 1 for value in found):
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise CompressError(
            f"{model.path / MANIFEST_NAME} has no thresholds that 'compress calibrate' writes; calibrate it again"
        ) from None
    return np.array([math.inf if value is None else value for value in found], float)


@dataclass(frozen=True)
class Reader:
    """A model, or a member of a cascade, with its tokenizer."""

    run: Run
    tokenizer: AnyTokenizer
    max_length: int
    task: str

    @classmethod
    def open(cls, model: ModelDir, compute: Compute = Compute()) -> Self:
        """Load a model; on ``auto`` an ONNX one runs on the CPU, and needs no PyTorch."""
        device = resolve_device(compute.device, for_onnx=model.is_onnx)
        tokenizer = model.open_tokenizer()
        run = open_runtime(model.path, threads=compute.threads, device=device)
        return cls(run, tokenizer, maximum_length(tokenizer, model.config), model.task)

    def logits(self, examples: Sequence[Example], advance: Advance = lambda rows: None) -> np.ndarray:
        """Return logits ``[N, C]``, of a tagger those of all words; ``advance`` counts the rows."""
        return logits_of(
            examples, self.run, self.tokenizer, max_length=self.max_length, task=self.task, advance=advance
        )


class Classifier:
    """A model that is loaded and predicts; made by :func:`load`.

    Args:
        model: an open model directory, torch or ONNX.
        compute: device and threads. ``auto`` is the CPU for an ONNX model.
    """

    def __init__(self, model: ModelDir, compute: Compute) -> None:
        self.labels = model.labels
        self.task = model.task
        members: Sequence[ModelDir] = [model]
        self._asked: Sequence[float] = ()
        if isinstance(model, CascadeDir):
            members, self._asked = model.members, model.thresholds
        self._members = [Reader.open(one, compute) for one in members]
        self.max_length = min(member.max_length for member in self._members)
        self._thresholds = acceptance_thresholds(model)

    def predict(self, texts: Sequence[Text], *, probabilities: bool = False) -> list[Prediction]:
        """Return one prediction a text, in order.

        A prediction is ``{"label", "probability"}``, or ``{"score"}`` for regression; of a tagger it is ``{"words",
        "tags", "probabilities"}``, one tag a word, null for a word that was cut off. A classifier that was calibrated
        with a share to be right adds ``"accepted"``: whether the probability reaches the threshold. Of a text that was
        cut, because the model does not read all of it, it has ``"truncated": True``.

        Args:
            texts: texts, pairs of texts as tuples, or examples; for a tagger a text is words with spaces between.
            probabilities: add ``"probabilities"``, those of all labels of a classifier.

        Raises:
            CompressError: it is a single text, or one is no text, or texts and pairs are mixed.
        """
        if isinstance(texts, str):
            raise CompressError("predict takes a list of texts; for one text type predict([text])")
        if probabilities and self.task != "classification":
            raise CompressError(f"a model made for {self.task} has no probabilities of its labels; leave them out")
        examples = [_example(text) for text in texts]
        if not examples:
            return []

        def ask(number: int, rows: np.ndarray) -> np.ndarray:
            return self._members[number].logits([examples[row] for row in rows])

        with counting() as truncation:
            logits = ask_in_turn(self._members[0].logits(examples), self._asked, ask).logits
        found = [*self._predictions(examples, logits, probabilities)]
        for example, prediction in zip(examples, found, strict=True):
            if truncation.has_cut(example):
                prediction["truncated"] = True
        return found

    def _predictions(
        self, examples: Sequence[Example], logits: np.ndarray, probabilities: bool
    ) -> Iterator[Prediction]:
        if self.task == "regression":
            yield from ({"score": round(float(row[0]), 4)} for row in logits)
        elif self.task == "tagging":
            of_sentences = by_sentence(softmax(logits), word_counts(examples))
            yield from (_tagged(e, rows, self.labels) for e, rows in zip(examples, of_sentences, strict=True))
        else:
            yield from (self._prediction(row, probabilities) for row in softmax(logits))

    def _prediction(self, row: np.ndarray, probabilities: bool) -> Prediction:
        best = int(row.argmax())
        found: Prediction = {"label": self.labels[best], "probability": round(float(row[best]), 4)}
        if self._thresholds is not None:
            found["accepted"] = bool(row[best] >= self._thresholds[best])
        if probabilities:
            found["probabilities"] = dict(zip(self.labels, np.round(row, 4).tolist(), strict=True))
        return found


def load(model: ModelDir | str | Path, *, compute: Compute = Compute()) -> Classifier:
    """Open a model directory, torch or ONNX, or a cascade, for prediction.

    Raises:
        CompressError: it is no classifier or does not open, or a torch model lacks the extra ``train``.
    """
    return Classifier(open_model(model), compute)


def _example(text: Text) -> Example:
    if isinstance(text, Example):
        return text
    parts = (text,) if isinstance(text, str) else text if isinstance(text, tuple) and len(text) == 2 else (None,)
    if not all(isinstance(part, str) and part == part.encode(errors="ignore").decode() for part in parts):
        raise CompressError(f"{ascii(text)[:80]} is neither a text nor a tuple of two texts that are UTF-8")
    return Example(*parts)


def _tagged(example: Example, probabilities: np.ndarray, labels: Sequence[str]) -> Prediction:
    best = [None if np.isnan(row).any() else int(row.argmax()) for row in probabilities]
    return {
        "words": list(example.words),
        "tags": [None if tag is None else labels[tag] for tag in best],
        "probabilities": [
            None if tag is None else round(float(row[tag]), 4) for row, tag in zip(probabilities, best, strict=True)
        ],
    }
