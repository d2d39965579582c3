"""What a student learns from and is selected by: pool rows with logits, gold rows, and a held-out part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compress.artifact import WORK_FOLDER
from compress.data import Example, row_key
from compress.errors import CompressError
from compress.labels import LabelDir
from compress.metrics import predictions
from compress.recipes import Choice, Training
from compress.rows import TrainingRow, write_rows
from compress.signals import signal_for
from compress.tokens import maximum_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.training import Outcome

HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05


@dataclass(frozen=True)
class Pool:
    """Label directories of one teacher as rows to learn from, without the rows that another role holds."""

    labels: tuple[LabelDir, ...]
    excluded: frozenset[bytes] = frozenset()
    identity: frozenset[Any] = frozenset()

    @property
    def name(self) -> str:
        return " + ".join(directory.manifest.name for directory in self.labels)

    @property
    def rows(self) -> int:
        """How many rows there are, excluded ones included."""
        return sum(directory.rows for directory in self.labels)

    def __iter__(self) -> Iterator[Example]:
        return (example for example, _ in self.labelled())

    def labelled(self) -> Iterator[tuple[Example, np.ndarray]]:
        labelled = chain.from_iterable(self.labels)
        if not self.excluded:
            return labelled
        return ((example, logits) for example, logits in labelled if row_key(example) not in self.excluded)

    def without(self, keys: frozenset[bytes]) -> Pool:
        return replace(self, excluded=self.excluded | keys)

    def held_out(self, example: Example) -> bool:
        """Tell whether a row selects instead of teaching; by its text, so that equal rows stay together."""
        share = min(HELD_OUT_SHARE, HELD_OUT_ROWS / max(self.rows, 1))
        return int.from_bytes(row_key(example), "big") < share * 2**64


@dataclass(frozen=True)
class Gold:
    """Labelled rows: classes or scores as the teacher counts them, and the teacher's logits ``[N, C]`` if it ran."""

    examples: Sequence[Example] = ()
    labels: Sequence[int] | Sequence[float] = ()
    logits: np.ndarray | None = None

    def rows(self) -> Iterator[TrainingRow]:
        for index, example in enumerate(self.examples):
            yield TrainingRow(example, None if self.logits is None else self.logits[index], self.labels[index])


@dataclass(frozen=True)
class Selection:
    """Rows by which the best checkpoint is chosen, and what the score is called in the manifest."""

    rows: Sequence[TrainingRow]
    split: str
    metric: str | None


def teaching_rows(pool: Pool | None, gold: Gold, *, hold_out: bool) -> Iterator[TrainingRow]:
    """Yield the pool with its logits, then the gold rows; ``hold_out`` leaves out what :func:`agreement_rows` takes."""
    labelled = pool.labelled() if pool else ()
    from_pool = (
        TrainingRow(example, logits)
        for example, logits in labelled
        if pool is not None and not (hold_out and pool.held_out(example))
    )
    return chain(from_pool, gold.rows())


def agreement_rows(pool: Pool, task: str) -> Selection:
    """Return held-out pool rows whose labels are what the teacher predicts: selection without gold labels."""
    held = [(example, logits) for example, logits in pool.labelled() if pool.held_out(example)]
    if not held:
        raise CompressError(
            f"{pool.name} has only {pool.rows} rows, too few to hold some out; give --validation FILE"
        )
    predicted = predictions(np.stack([logits for _, logits in held]), task).tolist()
    rows = [TrainingRow(example, None, label) for (example, _), label in zip(held, predicted, strict=True)]
    return Selection(rows, "held-out pool (agreement with the teacher)", None)


TEACHING_FILE, SELECTION_FILE = "teaching.arrow", "selection.arrow"


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    rows: Iterator[TrainingRow],
    selection: Selection,
    *,
    losses: Sequence[Choice],
    teacher: PreTrainedModel | None,
    training: Training,
    task: str,
    working: Path,
    steps: int = 0,
    seed: int,
    device: str,
    threads: int,
    quiet: bool,
) -> Outcome:
    """Tokenise the rows into the working directory and train on them; ``steps`` 0 follows from rows and epochs."""
    from compress.training import Target, steps_for, train

    work = working / WORK_FOLDER
    limit = maximum_length(tokenizer, model.config.to_dict())
    options: dict[str, Any] = {"max_length": min(training.max_length, limit), "task": task}
    teaching = write_rows(work / TEACHING_FILE, rows, tokenizer, **options)
    selecting = write_rows(work / SELECTION_FILE, iter(selection.rows), tokenizer, **options)
    return train(
        model,
        teaching,
        losses=losses,
        signal=signal_for(losses, teacher),
        target=Target(selecting, selection.metric, selection.split, task),
        training=training,
        steps=steps or steps_for(len(teaching), training),
        padding_id=tokenizer.pad_token_id or 0,
        checkpoints=work / "checkpoints",
        seed=seed,
        device=device,
        threads=threads,
        quiet=quiet,
    )
