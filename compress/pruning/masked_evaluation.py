"""What a model answers on fixed rows with some of its heads and neurons masked. Answers are kept for a resumed run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compress.data.word_alignment import one_column
from compress.evaluation.metrics import Difference, Metric, interval, paired_difference, predictions, score
from compress.inference.batching import TorchRun, logits_of
from compress.surgery.unit_masks import Masks, mask_key, masked
from compress.training.training_data import Gold

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class JudgingRows:
    """Rows with gold labels, how a model reads them, and the metric that its answers get."""

    gold: Gold
    metric: Metric
    classes: int
    max_length: int
    task: str
    split: str = "validation"


@dataclass(frozen=True)
class Evaluations:
    """A model, the rows that judge it, and a folder for what it predicts of them, ``[N]`` (of words, where it tags)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    rows: JudgingRows
    folder: Path

    def predicted(self, masks: Masks | None = None) -> np.ndarray:
        """Return the predictions of the model with heads and neurons masked, or of the model as it is."""
        path = self.folder / f"{mask_key(masks or {})}.npy"
        if path.is_file():
            known: np.ndarray = np.load(path, allow_pickle=False)
            return known
        found = predictions(self.logits(masks), self.rows.task)
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, found, allow_pickle=False)
        temporary.replace(path)
        return found

    def logits(self, masks: Masks | None = None, first: int | None = None) -> np.ndarray:
        """Return logits ``[N, C]``, not kept, of all rows or the first ones."""
        rows = self.rows
        with masked(self.model, masks or {}):
            return logits_of(
                rows.gold.examples[:first],
                TorchRun(self.model),
                self.tokenizer,
                max_length=rows.max_length,
                task=rows.task,
            )

    def value(self, masks: Masks | None = None) -> float:
        """Return the metric."""
        return score(self.predicted(masks), self._labels, metric=self.rows.metric, classes=self.rows.classes)

    def interval(self) -> tuple[float, float]:
        """Return the 95% interval of the whole model's value."""
        return interval(
            self.predicted(),
            self._labels,
            metric=self.rows.metric,
            classes=self.rows.classes,
            sentences=self._sentences,
        )

    def difference(self, masks: Masks) -> Difference:
        """Return what the model wins or loses with these masks against itself without, on the same rows."""
        return self.against(self.predicted(), masks)

    def against(self, reference: np.ndarray, masks: Masks | None = None) -> Difference:
        """Return what the model wins or loses against the predictions of another one on these rows."""
        return paired_difference(
            self.predicted(masks),
            reference,
            self._labels,
            metric=self.rows.metric,
            classes=self.rows.classes,
            sentences=self._sentences,
        )

    @cached_property
    def _labels(self) -> np.ndarray:
        return one_column(self.rows.gold.labels)

    @cached_property
    def _sentences(self) -> np.ndarray | None:
        """Return of each word which sentence it belongs to; None where whole texts are labelled."""
        if self.rows.task != "tagging":
            return None
        tags: Sequence[list[int]] = self.rows.gold.labels  # type: ignore[assignment]
        return np.repeat(np.arange(len(tags)), [len(row) for row in tags])
