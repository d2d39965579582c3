"""Training data of a student: unlabelled text with teacher logits, gold rows, and a held-out part for selection."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from compress.data import Example, TextSource, among, row_key
from compress.data.text_source import is_spread
from compress.data.tokenization import NO_ANSWER
from compress.errors import CompressError
from compress.evaluation.metrics import find_metric, predictions, score
from compress.labelling.label_dir import LabelDir
from compress.labelling.shards import Shards
from compress.training.learned_vocabulary import Mixer
from compress.training.tokenized_dataset import mapped_rows
from compress.training.tokenized_rows import NO_LABEL, PART_ROWS, TrainingRow, write_parts, write_rows

HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05


@dataclass(frozen=True)
class LabelledPool(TextSource):
    """Label directories as training rows: all of them, or those of some ``numbers``, ascending."""

    labels: tuple[LabelDir, ...]
    numbers: np.ndarray | None = None
    identity: frozenset[Any] = frozenset()

    @property
    def name(self) -> str:  # type: ignore[override]  # computed, not set
        return " + ".join(directory.manifest.name for directory in self.labels)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(directory.rows for directory in self.labels) if self.numbers is None else len(self.numbers)

    def __iter__(self) -> Iterator[Example]:
        return (example for example, _ in self.labelled())

    def labelled(self) -> Iterator[tuple[Example, np.ndarray]]:
        for shards, numbers in self.by_directory():
            yield from shards.rows_at(numbers)

    def by_directory(self) -> Iterator[tuple[Shards, np.ndarray]]:
        """Yield the shards of every directory with the numbers of its rows."""
        first = 0
        for directory in self.labels:
            numbers = np.arange(first, first + directory.rows)
            if self.numbers is not None:
                numbers = self.numbers[slice(*np.searchsorted(self.numbers, [first, first + directory.rows]))]
            yield directory.shards, numbers - first
            first += directory.rows

    def keys(self) -> np.ndarray:
        keys = np.concatenate([np.zeros(0, np.uint64), *(directory.keys for directory in self.labels)])
        return keys if self.numbers is None else keys[self.numbers]

    def where(self, chosen: np.ndarray) -> Self:
        """Return the rows where ``chosen`` ``[N]`` is true."""
        numbers = np.flatnonzero(chosen)
        return replace(self, numbers=numbers if self.numbers is None else self.numbers[numbers])

    def sample(self, rows: int) -> Self:
        return self if self.rows <= rows else self.where(is_spread(np.arange(self.rows), rows, self.rows))

    def without(self, keys: frozenset[bytes]) -> Self:
        return self.where(~among(self.keys(), keys)) if keys else self

    def part(self, *, held: bool) -> Self:
        """Return the rows that are held out from training, or the others."""
        return self.where((self.keys() < _held_out_below(self.rows)) == held)


@dataclass(frozen=True)
class UnlabelledText:
    """Text without teacher logits, for phases that read none: so many rows, or of them one part."""

    source: Iterable[Example]
    rows: int
    held: bool | None = None

    def labelled(self) -> Iterator[tuple[Example, None]]:
        return (
            (example, None) for example in self.source if self.held is None or held_out(example, self.rows) == self.held
        )

    def part(self, *, held: bool) -> Self:
        """Return the rows that are held out from training, or the others."""
        return replace(self, held=held)


def held_out(example: Example, rows: int) -> bool:
    """Tell whether a row of so many is held out from training; by its text alone, so that equal rows stay together."""
    return int.from_bytes(row_key(example), "big") < _held_out_below(rows)


def _held_out_below(rows: int) -> int:
    """Return the key below which rows are held out."""
    return math.ceil(min(HELD_OUT_SHARE, HELD_OUT_ROWS / max(rows, 1)) * 2**64)


def check_held_out(
    pool: TextSource, rows: int, *, has_others: bool = False, remedy: str = "give --validation FILE"
) -> None:
    """Refuse text of which nothing is held out, or nothing is left to train on.

    Args:
        rows: how many there are, as :func:`held_out` takes them.
        has_others: whether there are other rows to train on.
    """
    found = {False} if has_others else set[bool]()
    for example in pool:
        found.add(held_out(example, rows))
        if len(found) == 2:
            return
    raise CompressError(f"{pool.name} has {rows:,} rows, too few different ones to hold some out; {remedy}")


@dataclass(frozen=True)
class Gold:
    """Gold-labelled rows: class ids or scores, and the teacher's logits ``[N, C]`` where it was run.

    For tagging there is a list of tag ids and an array of logits ``[W, C]`` for each sentence.
    """

    examples: Sequence[Example] = ()
    labels: Sequence[int | float | list[int]] = ()
    logits: np.ndarray | list[np.ndarray] | None = None

    def rows(self) -> Iterator[TrainingRow]:
        logits = [None] * len(self.examples) if self.logits is None else self.logits
        for example, row_logits, label in zip(self.examples, logits, self.labels, strict=True):
            yield TrainingRow(example, row_logits, label)


@dataclass(frozen=True)
class Selection:
    """Rows that select the best checkpoint, tokenised or not, and the name of their split in the manifest."""

    rows: Sequence[TrainingRow] | Dataset
    split: str
    metric: str | None

    def score(self, value: float | None, task: str) -> dict[str, Any]:
        """Return the manifest's entry of the selected checkpoint's score."""
        name = find_metric(self.metric, task=task).name
        return {"name": name, "value": value, "split": self.split, "rows": len(self.rows)}


@dataclass(frozen=True)
class TrainingData:
    """All training rows, without those of the pool that :func:`agreement_rows` selects by."""

    pool: LabelledPool | UnlabelledText | None
    gold: Gold

    def rows(self, text: str) -> Iterator[TrainingRow]:
        """Yield the rows of ``all``, ``pool`` or ``gold`` text: the pool with its logits, then the gold rows."""
        pool, gold = self._of(text)
        from_pool = (TrainingRow(*row) for row in pool.labelled()) if pool else ()
        return chain(from_pool, gold.rows())

    def _of(self, text: str) -> tuple[LabelledPool | UnlabelledText | None, Gold]:
        return None if text == "gold" else self.pool, Gold() if text == "pool" else self.gold

    def tokenized(
        self,
        path: Path,
        text: str,
        tokenizer: PreTrainedTokenizerFast,
        *,
        max_length: int,
        task: str,
        mixer: Mixer | None = None,
    ) -> Dataset:
        """Write the tokenised :meth:`rows` and return them memory-mapped; what an earlier start wrote is reused.

        A large pool is tokenised in parts, on all cores.
        """
        pool, gold = self._of(text)
        limits: dict[str, Any] = {"max_length": max_length, "task": task}
        # What mixes vocabularies draws as it goes, and of a tagger's rows some are left out.
        if not isinstance(pool, LabelledPool) or pool.rows <= PART_ROWS or mixer or task == "tagging":
            return mapped_rows(write_rows(path, self.rows(text), tokenizer, mixer=mixer, **limits))
        parts = write_parts(path, pool.by_directory(), tokenizer, **limits)
        if gold.examples:
            parts.append(write_rows(path, gold.rows(), tokenizer, first=pool.rows, **limits))
        return mapped_rows(*parts)


@dataclass(frozen=True)
class TrainingPlan:
    """Rows of one training, the rows that select its checkpoint, and how many rows its steps are for (0: its own).

    ``texts`` are the rows by whose lengths ``max_length`` is chosen (None: its own).
    """

    data: TrainingData
    selection: Selection | None = None
    rows: int = 0
    texts: Iterable[Example] | None = None


def agreement_rows(pool: LabelledPool, task: str) -> Selection:
    """Return held-out pool rows labelled with the teacher's predictions, to select without gold labels."""
    check_held_out(pool, pool.rows, has_others=True)
    examples, logits = zip(*pool.part(held=True).labelled(), strict=True)
    predicted: list[Any]
    if task == "tagging":
        by_sentence = (predictions(one, task) for one in logits)
        predicted = [np.where(tags == NO_ANSWER, NO_LABEL, tags).tolist() for tags in by_sentence]
    else:
        predicted = predictions(np.stack(logits), task).tolist()
    rows = [TrainingRow(example, None, label) for example, label in zip(examples, predicted, strict=True)]
    teacher = "labels" if any(not directory.teacher_sha256 for directory in pool.labels) else "teacher"
    return Selection(rows, f"held-out pool (agreement with the {teacher})", None)


def score_without_learning(labels: np.ndarray, classes: int, *, task: str, metric: str | None) -> float:
    """Return the best metric of one class for all rows: the most frequent one, or the last, of which F1 is.

    It is minus infinity for scores, and where all labels are of one class, so that this is right.
    """
    labels = labels[labels != NO_LABEL]
    if task == "regression" or len(np.unique(labels)) == 1:
        return -math.inf
    chosen = find_metric(metric, task=task, classes=classes)
    constant = (np.full_like(labels, label) for label in (np.bincount(labels).argmax(), classes - 1))
    return max(score(predicted, labels, metric=chosen, classes=classes) for predicted in constant)
