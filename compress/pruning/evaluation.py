"""The rows of a pruning stage by role, and evaluations of a model with some heads or neurons masked."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example, LabelledData, check_roles, encode_gold, row_key
from compress.data.tokenization import maximum_length, one_column
from compress.evaluation.metrics import (
    Difference,
    Metric,
    find_metric,
    interval,
    paired_difference,
    predictions,
    score,
)
from compress.inference.batching import TorchRun, logits_of
from compress.inference.label_check import check_label_meaning
from compress.inference.padding import exact_batches
from compress.labelling.label_dir import LabelDir
from compress.models.batch import Batch
from compress.models.model_dir import ModelDir
from compress.models.resumption import is_whole, seal
from compress.pruning.scoring import check_rows, scoring_batches
from compress.surgery.unit_masks import Masks, mask_key, masked
from compress.training.training_data import Gold, LabelledPool, Selection, agreement_rows

ON_TRAIN = "train (the scoring rows)"


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
class PruningRows:
    """``sample`` scores heads and layers, ``train`` and ``pool`` train the recovery, ``validation`` selects.

    ``evaluation`` are the rows that pruned models are evaluated on: without validation rows the scoring rows.
    ``described`` are the entries of a manifest; those of the pool get ``left_out`` too.
    """

    sample: Gold
    train: Gold
    validation: Gold
    pool: LabelledPool | None
    evaluation: EvaluationRows
    described: list[dict[str, Any]]
    left_out: dict[str, Any]

    def batches(self, tokenizer: PreTrainedTokenizerFast, device: str) -> list[Batch]:
        """Return the rows that score in batches."""
        labels, rows = self.sample.labels, self.evaluation
        limits: dict[str, Any] = {"max_length": rows.max_length, "task": rows.task}
        return list(scoring_batches(self.sample.examples, labels, tokenizer, **limits, device=device))

    def selection(self, task: str) -> Selection | None:
        """Return the rows that select the checkpoint: validation rows, or a part of the pool by agreement."""
        if self.validation.examples:
            return Selection(list(self.validation.rows()), "validation", self.evaluation.metric.name)
        return None if self.pool is None else agreement_rows(self.pool, task)


def split_rows(
    model: ModelDir, data: LabelledData, *, examples: int, seed: int, labels: Sequence[LabelDir] = ()
) -> PruningRows:
    """Check labelled rows against a model and each other, and draw the rows that score.

    Args:
        examples: how many rows of train to draw.
        labels: text for the recovery.

    Raises:
        CompressError: no rows of train, labels that the model does not know, or rows in two roles.
    """

    def encoded(rows: Sequence[Example], role: str) -> Gold:
        return Gold(rows, encode_gold(rows, model.labels, task=model.task, name=role))

    check_rows(data.train)
    encoded(data.train, "train")  # before rows are left out: errors count the rows as they were given
    validation = encoded(data.validation, "validation")
    pool = LabelledPool(tuple(labels)) if labels else None
    given: dict[str, Any] = {"train": data.train, "unlabeled": pool, "validation": data.validation}
    present = {role: rows for role, rows in given.items() if rows}
    checked = check_roles(present, data.overlap)
    sets: dict[str, Any] = dict(checked.sets)
    train: Sequence[Example] = sets["train"]
    sample = encoded(random.Random(seed).sample(list(train), min(examples, len(train))), "sample")
    return PruningRows(
        sample,
        encoded(train, "train"),
        validation,
        sets["unlabeled"].without(frozenset(map(row_key, train))) if labels else None,
        EvaluationRows(
            validation if data.validation else sample,
            find_metric(data.metric, task=model.task, classes=len(model.labels)),
            len(model.labels),
            maximum_length(model.load_tokenizer(), model.config),
            model.task,
            "validation" if data.validation else ON_TRAIN,
        ),
        checked.described(),
        checked.left_out.get("unlabeled", {}),
    )


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
        if is_whole(path):
            known: np.ndarray = np.load(path, allow_pickle=False)
            return known
        found = predictions(self.logits(masks), self.rows.task)
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, found, allow_pickle=False)
        temporary.replace(path)
        seal(path)
        return found

    def check(self) -> None:
        """Refuse rows whose labels mean something else than the classes of the model without masks."""
        names = [*(self.model.config.id2label or {}).values()]
        check_label_meaning(self.predicted(), self._labels, names, self.rows.split)

    def logits(self, masks: Masks | None = None, first: int | None = None) -> np.ndarray:
        """Return logits ``[N, C]``, not cached, of all rows or the first ones."""
        rows = self.rows
        with masked(self.model, masks or {}):
            return logits_of(
                rows.gold.examples[:first],
                exact_batches(TorchRun(self.model), self.model.config.to_dict(), "float32"),
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
        difference = self.difference(masks)
        value = self.value(masks)
        return {"value": value, "points": difference.points, "low": difference.low, "high": difference.high}

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
