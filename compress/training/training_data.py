"""Training data of a student: unlabelled text with teacher logits, gold rows, and a held-out part for selection."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from datasets import Dataset

from compress.data import Example, TextSource, row_key
from compress.data.text_source import spread_evenly
from compress.data.tokenization import NO_ANSWER
from compress.errors import CompressError
from compress.evaluation.metrics import find_metric, predictions
from compress.labelling.label_dir import LabelDir
from compress.training.tokenized_dataset import NO_LABEL, TrainingRow

HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05


@dataclass(frozen=True)
class LabelledPool(TextSource):
    """Label directories as training rows, without rows that also occur in another role.

    With ``spread`` only so many of so many rows, in equal distances.
    """

    labels: tuple[LabelDir, ...]
    excluded: frozenset[bytes] = frozenset()
    spread: tuple[int, int] | None = None
    identity: frozenset[Any] = frozenset()

    @property
    def name(self) -> str:  # type: ignore[override]  # computed, not set
        return " + ".join(directory.manifest.name for directory in self.labels)

    @property
    def rows(self) -> int:
        """How many rows there are, excluded ones included unless they were sampled."""
        return self.spread[0] if self.spread else sum(directory.rows for directory in self.labels)

    def __iter__(self) -> Iterator[Example]:
        return (example for example, _ in self.labelled())

    def labelled(self) -> Iterator[tuple[Example, np.ndarray]]:
        rows = (
            (example, logits)
            for example, logits in chain.from_iterable(self.labels)
            if not self.excluded or row_key(example) not in self.excluded
        )
        return spread_evenly(rows, *self.spread) if self.spread else rows

    def sample(self, rows: int) -> Self:
        total = sum(1 for _ in self)
        return self if total <= rows else replace(self, spread=(rows, total))

    def without(self, keys: frozenset[bytes]) -> Self:
        return replace(self, excluded=self.excluded | keys)


@dataclass(frozen=True)
class UnlabelledText:
    """Text without teacher logits, for phases that read none."""

    source: Iterable[Example]
    rows: int

    def labelled(self) -> Iterator[tuple[Example, None]]:
        return ((example, None) for example in self.source)


def held_out(example: Example, rows: int) -> bool:
    """Tell whether a row of so many is held out from training; by its text alone, so that equal rows stay together."""
    share = min(HELD_OUT_SHARE, HELD_OUT_ROWS / max(rows, 1))
    return int.from_bytes(row_key(example), "big") < share * 2**64


def check_held_out(pool: TextSource, rows: int, *, has_others: bool = False) -> None:
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
    raise CompressError(f"{pool.name} has only {rows:,} rows, too few to hold some out; give --validation FILE")


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
    """All training rows. ``hold_out`` leaves out the pool rows that :func:`agreement_rows` selects by."""

    pool: LabelledPool | UnlabelledText | None
    gold: Gold
    hold_out: bool = False

    def rows(self, text: str) -> Iterator[TrainingRow]:
        """Yield the rows of ``all``, ``pool`` or ``gold`` text: the pool with its logits, then the gold rows."""
        from_pool = (
            TrainingRow(example, logits)
            for example, logits in (self.pool.labelled() if self.pool and text != "gold" else ())
            if self.pool and not (self.hold_out and held_out(example, self.pool.rows))
        )
        return chain(from_pool, self.gold.rows() if text != "pool" else ())


@dataclass(frozen=True)
class TrainingPlan:
    """Rows of one training, the rows that select its checkpoint, and how many rows its steps are for (0: its own)."""

    data: TrainingData
    selection: Selection | None = None
    rows: int = 0


def agreement_rows(pool: LabelledPool, task: str) -> Selection:
    """Return held-out pool rows labelled with the teacher's predictions, to select without gold labels."""
    check_held_out(pool, pool.rows, has_others=True)
    held = [(example, logits) for example, logits in pool.labelled() if held_out(example, pool.rows)]
    predicted: list[Any]
    if task == "tagging":
        by_sentence = (predictions(logits, task) for _, logits in held)
        predicted = [np.where(tags == NO_ANSWER, NO_LABEL, tags).tolist() for tags in by_sentence]
    else:
        predicted = predictions(np.stack([logits for _, logits in held]), task).tolist()
    rows = [TrainingRow(example, None, label) for (example, _), label in zip(held, predicted, strict=True)]
    teacher = "labels" if any(not directory.teacher_sha256 for directory in pool.labels) else "teacher"
    return Selection(rows, f"held-out pool (agreement with the {teacher})", None)
