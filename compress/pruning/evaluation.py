"""Evaluate a model with some heads or neurons masked; predictions are cached so that runs resume."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data.tokenization import one_column
from compress.evaluation.metrics import Difference, Metric, interval, paired_difference, predictions, score
from compress.inference.batching import TorchRun, logits_of
from compress.surgery.unit_masks import Masks, mask_key, masked
from compress.training.training_data import Gold


@dataclass(frozen=True)
class EvaluationRows:
    """Rows with gold labels, how a model reads them, and the metric of its predictions."""

    gold: Gold
    metric: Metric
    classes: int
    max_length: int
    task: str
    split: str = "validation"


@dataclass(frozen=True)
class MaskedEvaluation:
    """Evaluations of one model on fixed rows.

    ``folder`` caches predictions ``[N]`` (of words, for a tagger). ``reference`` are the predictions that differences
    are against; by default those of the model without masks.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    rows: EvaluationRows
    folder: Path
    reference: np.ndarray | None = None

    def predicted(self, masks: Masks | None = None) -> np.ndarray:
        """Return the predictions of the model with these heads and neurons masked."""
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
        """Return logits ``[N, C]``, not cached, of all rows or the first ones."""
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
        """Return the 95% interval of the metric without masks."""
        return interval(self.predicted(), self._labels, **self._compared)

    def difference(self, masks: Masks | None = None) -> Difference:
        """Return the difference to the reference on the same rows, with its 95% interval."""
        reference = self.predicted() if self.reference is None else self.reference
        return paired_difference(self.predicted(masks), reference, self._labels, **self._compared)

    def effect(self, masks: Masks | None = None) -> dict[str, Any]:
        """Return the metric as ``value`` and the fields of the difference, except McNemar's p."""
        found = {"value": self.value(masks), **asdict(self.difference(masks))}
        del found["mcnemar_p"]
        return found

    @cached_property
    def _labels(self) -> np.ndarray:
        return one_column(self.rows.gold.labels)

    @cached_property
    def _compared(self) -> dict[str, Any]:
        """Arguments of intervals; for a tagger with the sentence of each word, since whole sentences are resampled."""
        sentences = None
        if self.rows.task == "tagging":
            tags: Sequence[list[int]] = self.rows.gold.labels  # type: ignore[assignment]
            sentences = np.repeat(np.arange(len(tags)), [len(row) for row in tags])
        return {"metric": self.rows.metric, "classes": self.rows.classes, "sentences": sentences}
