"""What a model answers on fixed rows with some of its heads closed. Each answer is kept: a stopped study goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compress.inference import TorchRun, logits_of
from compress.metrics import Difference, Metric, interval, paired_difference, predictions, score
from compress.transfer import Gold
from compress.words import one_column

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Masks = Sequence["Tensor"]


@dataclass(frozen=True)
class Evaluations:
    """A model, rows with gold labels, and a folder for what it predicts of them, ``[N]`` (of words, where it tags)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    gold: Gold
    metric: Metric
    classes: int
    max_length: int
    folder: Path

    def predicted(self, masks: Masks | None = None) -> np.ndarray:
        """Return the predictions of the model with the heads of these masks, or of the whole model."""
        from compress.gates import masked

        given = b"" if masks is None else b"".join(mask.bool().numpy().tobytes() + b"|" for mask in masks)
        path = self.folder / f"{hashlib.sha256(given).hexdigest()[:16]}.npy"
        if path.is_file():
            known: np.ndarray = np.load(path, allow_pickle=False)
            return known
        with nullcontext() if masks is None else masked(self.model, masks):
            logits = logits_of(
                self.gold.examples, TorchRun(self.model), self.tokenizer, max_length=self.max_length,
                task=self.metric.task,
            )  # fmt: skip
        found = predictions(logits, self.metric.task)
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, found, allow_pickle=False)
        temporary.replace(path)
        return found

    def value(self, masks: Masks | None = None) -> float:
        return score(self.predicted(masks), self._labels, metric=self.metric, classes=self.classes)

    def interval(self) -> tuple[float, float]:
        """Return the 95% interval of the whole model's value."""
        return interval(
            self.predicted(), self._labels, metric=self.metric, classes=self.classes, sentences=self._sentences
        )

    def difference(self, masks: Masks) -> Difference:
        """Return what the model wins or loses with these masks against the whole one, on the same rows."""
        return paired_difference(
            self.predicted(masks), self.predicted(), self._labels, metric=self.metric, classes=self.classes,
            sentences=self._sentences,
        )  # fmt: skip

    @cached_property
    def _labels(self) -> np.ndarray:
        return one_column(self.gold.labels)

    @cached_property
    def _sentences(self) -> np.ndarray | None:
        """Return of each word which sentence it belongs to; None where whole texts are labelled."""
        if self.metric.task != "tagging":
            return None
        tags: Sequence[list[int]] = self.gold.labels  # type: ignore[assignment]
        return np.repeat(np.arange(len(tags)), [len(row) for row in tags])
