"""Shards of labels: texts and a teacher's logits as Parquet, each with a manifest of its own.

A shard holds ``text``, ``text_pair`` (if any) and the teacher's raw logits ``[N, C]`` in float32; losses apply a
temperature later. Those of a tagger are ``[W, C]`` for each text, in one list: word after word, not a number where it
did not answer (:mod:`compress.data.tokenization`). ``shard-00000.json`` beside it names the teacher, the tokenizer,
the rows and the checksum.
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compress.data import Example, row_keys
from compress.data.formats.parquet import batch_rows, is_string
from compress.data.tokenization import check_one_kind
from compress.data.truncation import Truncation
from compress.errors import CompressError, refuse
from compress.files import ALWAYS_BYTES, LARGEST_RATIO, faults_of, read_json_table, regular_file, write_atomically
from compress.models.manifest import file_sha256
from compress.tasks import Task

SHARD_ROWS = 2048
_AGAIN = "label the text again"


@dataclass(frozen=True)
class Part:
    """One of the parts that the shards of a text are divided among, in turn: ``number`` of ``of``, from 1."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise CompressError(f"part {self} is none; parts are 1/N to N/N")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, shard: int) -> bool:
        """Tell whether a shard, numbered from 0 in the whole text, is in this part."""
        return shard % self.of == self.number - 1


@dataclass(frozen=True)
class Shards:
    """The shards of a label directory, without its manifest: what processes need to read them.

    ``starts`` are the numbers of the first row of each shard and, last, the number of rows: int64 ``[shards + 1]``.
    ``order`` are the numbers of the classes in the order in which logits are wanted; empty where it is theirs.
    """

    path: Path
    classes: int
    task: Task
    starts: np.ndarray
    order: tuple[int, ...] = ()

    def rows_at(self, numbers: np.ndarray) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield the examples and logits of some rows, given in ascending order; only their shards are read."""
        places = np.searchsorted(numbers, self.starts)
        for number, (first, last) in enumerate(itertools.pairwise(places.tolist())):
            if first < last:
                examples, logits = read_shard(self.path, number, self.classes, task=self.task)
                for row in (numbers[first:last] - self.starts[number]).tolist():
                    yield examples[row], logits[row][..., self.order] if self.order else logits[row]

    def keys(self, number: int) -> np.ndarray:
        """Return the :func:`compress.data.row_keys` of a shard."""
        return row_keys(read_shard(self.path, number, self.classes, task=self.task)[0])


def centred(logits: np.ndarray) -> np.ndarray:
    """Return logits ``[..., C]`` float32 with a mean of 0 over the classes, which changes no probability."""
    return np.asarray(logits - logits.mean(axis=-1, keepdims=True), dtype=np.float32)


def shard_path(directory: Path, number: int) -> Path:
    return directory / f"shard-{number:05d}.parquet"


def shard_number(path: Path) -> int:
    return int(path.stem.removeprefix("shard-"))


def write_shard(
    directory: Path,
    number: int,
    examples: Sequence[Example],
    logits: np.ndarray,
    record: dict[str, Any],
    task: Task,
) -> None:
    """Write one shard, then its manifest: a shard without a valid manifest does not count.

    ``logits`` are ``[N, C]``, where N counts words if the task answers these.
    """
    check_one_kind(examples)
    columns: dict[str, Any] = {"text": pa.array([e.text for e in examples], pa.string())}
    if examples[0].text_pair is not None:
        columns["text_pair"] = pa.array([e.text_pair for e in examples], pa.string())
    flat = pa.array(np.ascontiguousarray(logits, dtype=np.float32).reshape(-1))
    if (counts := task.answer_counts(examples)) is None:
        columns["logits"] = pa.FixedSizeListArray.from_arrays(flat, logits.shape[1])
    else:
        ends = np.cumsum([0, *counts]) * logits.shape[1]
        columns["logits"] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat)
    path = shard_path(directory, number)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    record = {**record, "shard": number, "rows": len(examples), "sha256": file_sha256(path)}
    write_atomically(path.with_suffix(".json"), json.dumps(record, indent=1, sort_keys=True) + "\n")


def read_shard(
    directory: Path, number: int, classes: int, *, task: Task
) -> tuple[list[Example], np.ndarray | list[np.ndarray]]:
    """Return a shard's examples and logits ``[N, C]`` float32; of a tagger one array ``[W, C]`` for each example.

    Raises:
        CompressError: it is damaged, or has other columns, types or numbers than labels have.
    """
    path = shard_path(directory, number)
    with faults_of(path, "a shard of labels", _AGAIN):
        file, rows = open_shard(directory, number)
        names = [name for name in ("text", "text_pair", "logits") if name in file.schema_arrow.names]
        table = pa.Table.from_batches(
            _bounded(path, file.iter_batches(batch_size=rows, columns=names), 4 * classes * SHARD_ROWS)
        )
        *texts, logits = (table[name].combine_chunks() for name in names)
        refuse((not _are_labels(texts, logits), f"{path} has not the columns that labels have; {_AGAIN}"))
        columns = [column.to_pylist() for column in texts]
        examples = [Example(*row) for row in zip(*columns, strict=True)]
        values = logits.flatten().to_numpy(zero_copy_only=False)
        counts = task.answer_counts(examples) or [1] * len(examples)
        if logits.value_lengths().to_pylist() != [count * classes for count in counts]:
            each = "word" if task.by_word else "text"
            raise CompressError(f"{path} has not {classes} logits for each {each}, one a class; {_AGAIN}")
        values = values.reshape(sum(counts), classes)
        known = np.isfinite(values).all(axis=1)
        if task.by_word:  # a word that was cut off has none
            known |= np.isnan(values).all(axis=1)
        if not known.all():
            row = np.argmin(known) + 1
            raise CompressError(f"{path} has logits that are not finite numbers (row {row} of them); {_AGAIN}")
        return examples, task.by_row(values, examples)


def _are_labels(texts: Sequence[pa.Array], logits: pa.Array) -> bool:
    """Tell whether columns are as :func:`write_shard` has them: strings, and lists of float32, without gaps."""
    kind = logits.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or kind.value_type != pa.float32() or not all(is_string(column.type) for column in texts):
        return False
    return not any(column.null_count for column in (*texts, logits, logits.flatten()))


def _bounded(path: Path, batches: Iterable[pa.RecordBatch], logits_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield batches as long as all together are no larger than text that was packed; a dictionary may repeat a text.

    Logits are ``logits_bytes`` more: those of hard labels are packed to next to nothing.
    """
    left = max(ALWAYS_BYTES, LARGEST_RATIO * path.stat().st_size) + logits_bytes
    for batch in batches:
        left -= batch.nbytes
        refuse((left < 0, f"{path} holds more than {LARGEST_RATIO} times its own size; {_AGAIN}"))
        yield batch


def open_shard(directory: Path, number: int) -> tuple[pq.ParquetFile, int]:
    """Return a shard and how many of its rows may be read at a time."""
    path = regular_file(shard_path(directory, number))
    with faults_of(path, "a shard of labels", _AGAIN):
        file = pq.ParquetFile(path)
        with path.open("rb") as stream:
            rows = batch_rows(str(path), stream, file.metadata, path.stat().st_size)
        sound = {"text", "logits"} <= set(file.schema_arrow.names) and file.metadata.num_rows <= SHARD_ROWS
        refuse((not sound, f"{path} has not at most {SHARD_ROWS:,} rows of text and logits; {_AGAIN}"))
    return file, rows


def shard_is_done(directory: Path, number: int, record: dict[str, Any]) -> bool:
    """Tell whether a shard is whole and was made by the same teacher, tokenizer and plan."""
    path = shard_path(directory, number)
    try:
        written = read_json_table(path.with_suffix(".json"))
    except CompressError:
        return False
    same = all(written.get(key) == value for key, value in record.items())
    return same and path.is_file() and file_sha256(path) == written.get("sha256")


def count_truncated(truncation: Truncation, records: Iterable[Path], max_length: int) -> None:
    """Count the rows of shards, and those that were cut, by the records beside the shards."""
    for record in map(read_json_table, records):
        truncation.add_counts(max_length, record["rows"], record.get("truncated", 0))


def link_or_copy(source: Path, target: Path, like: os.stat_result) -> None:
    """Put a file at another place too: by a link where its owner and mode are those of new files, which it shares."""
    target.unlink(missing_ok=True)
    found = source.stat()
    if (found.st_uid, found.st_mode) == (like.st_uid, like.st_mode):
        try:
            os.link(source.resolve(), target)
            return
        except OSError:  # another file system, or one without links
            pass
    shutil.copyfile(source, target)
