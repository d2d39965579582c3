"""Training rows: unlabelled text with teacher logits, gold rows, and rows that select; tokenised as Arrow files."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from compress.data import Example, TextSource, among, row_key
from compress.data.examples import batched
from compress.data.sources import is_spread
from compress.data.tokenization import encode
from compress.errors import CompressError
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import is_whole, seal
from compress.tasks import Task
from compress.training.learned_vocabulary import Mixer

ENCODED_ROWS = 4096
HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05


@dataclass(frozen=True)
class TrainingRow:
    """A training row: its text, and the teacher's logits ``[C]`` and gold label where it has them.

    For tagging the logits are ``[W, C]``, one row a word, and there is a label for each word.
    """

    example: Example
    logits: np.ndarray | None = None
    label: int | float | list[int] | None = None


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
        return sum(directory.rows for directory in self.labels) if self.numbers is None else len(self.numbers)

    def __iter__(self) -> Iterator[Example]:
        return (example for example, _ in self.labelled())

    def labelled(self) -> Iterator[tuple[Example, np.ndarray]]:
        first = 0
        for directory in self.labels:
            numbers = np.arange(first, first + directory.rows)
            if self.numbers is not None:
                numbers = self.numbers[slice(*np.searchsorted(self.numbers, [first, first + directory.rows]))]
            yield from directory.shards.rows_at(numbers - first)
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
        return replace(self, held=held)


def held_out(example: Example, rows: int) -> bool:
    """Tell whether a row of so many is held out from training; by its text alone, so that equal rows stay together."""
    return int.from_bytes(row_key(example), "big") < _held_out_below(rows)


def _held_out_below(rows: int) -> int:
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

    def score(self, value: float | None, task: Task) -> dict[str, Any]:
        return {"name": task.metric(self.metric).name, "value": value, "split": self.split, "rows": len(self.rows)}


@dataclass(frozen=True)
class TrainingData:
    """All training rows, without those of the pool that select, and the rows that select the checkpoint.

    Args:
        planned_rows: how many rows the steps are for; 0 for as many as there are.
        texts: rows by whose lengths ``max_length`` is chosen; by default all rows.
    """

    pool: LabelledPool | UnlabelledText | None
    gold: Gold = Gold()
    selection: Selection | None = None
    planned_rows: int = 0
    texts: Iterable[Example] | None = None

    def rows(self, text: str) -> Iterator[TrainingRow]:
        """Yield the rows of ``all``, ``pool`` or ``gold`` text: the pool with its logits, then the gold rows."""
        pool = self.pool.labelled() if self.pool and text != "gold" else ()
        gold = self.gold.rows() if text != "pool" else ()
        return itertools.chain((TrainingRow(*row) for row in pool), gold)


def agreement_rows(pool: LabelledPool, task: Task) -> Selection:
    """Return held-out pool rows labelled with the teacher's predictions, to select without gold labels."""
    check_held_out(pool, pool.rows, has_others=True)
    examples, logits = zip(*pool.part(held=True).labelled(), strict=True)
    predicted = zip(examples, task.pseudo_labels(logits), strict=True)
    rows = [TrainingRow(example, None, label) for example, label in predicted]
    teacher = "labels" if any(not directory.teacher_sha256 for directory in pool.labels) else "teacher"
    return Selection(rows, f"held-out pool (agreement with the {teacher})", None)


def tokenized(
    path: Path,
    rows: Iterable[TrainingRow],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    task: Task,
    mixer: Mixer | None = None,
) -> Dataset:
    """Tokenise rows into an Arrow file and return it memory-mapped; what an earlier start wrote is reused.

    Columns: ``input_ids``, ``token_type_ids`` (where the tokenizer makes them), ``length``, ``row`` (its number),
    ``truncated`` (whether it was cut), ``labels``, ``teacher_logits``, and with a ``mixer`` ``mixed_ids``. A task that
    answers words has ``words`` too, 1 for every token where a word starts; labels and logits are lists over these. What
    teaches nothing is left out (:meth:`compress.tasks.Task.taught`).
    """
    if not is_whole(path):
        temporary = path.with_suffix(".tmp")
        tables = _tables(rows, tokenizer, max_length, task, mixer)
        head = next(tables, None)
        if head is None:
            raise ValueError("no rows to write")
        with pa.ipc.new_stream(str(temporary), head.schema) as writer:
            for table in itertools.chain([head], tables):
                writer.write_table(table)
        temporary.replace(path)
        seal(path)
    return Dataset.from_file(str(path))


def _tables(
    rows: Iterable[TrainingRow],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    task: Task,
    mixer: Mixer | None,
) -> Iterator[Any]:
    """Yield the Arrow tables of :func:`tokenized`."""
    written = 0
    for chunk in batched(rows, ENCODED_ROWS):
        examples = [row.example for row in chunk]
        tokens = encode(tokenizer, examples, max_length, by_word=task.by_word, counted=False)
        cut = [number in tokens.truncated for number in range(len(chunk))]
        has_logits = chunk[0].logits is not None
        chunk, tokens, cut = task.taught(chunk, tokens, cut)
        columns: dict[str, Any] = {key: pa.array(values, pa.list_(pa.int32())) for key, values in tokens.items()}
        if mixer:
            columns["mixed_ids"] = pa.array([mixer.ids(row.example, max_length) for row in chunk], pa.list_(pa.int32()))
        columns["row"] = pa.array(range(written, written + len(chunk)), pa.int64())
        columns["length"] = pa.array([len(ids) for ids in tokens["input_ids"]], pa.int32())
        columns["truncated"] = pa.array(cut, pa.bool_())
        columns["labels"] = pa.array([task.no_label if row.label is None else row.label for row in chunk])
        if has_logits:
            kind = pa.list_(pa.float32())
            columns["teacher_logits"] = pa.array(
                [list(row.logits) if task.by_word else row.logits for row in chunk],
                pa.list_(kind) if task.by_word else kind,
            )
        written += len(chunk)
        yield pa.table(columns)
