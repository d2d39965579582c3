"""Label directory: texts with the logits of a teacher, as Parquet shards with a manifest each.

A shard holds ``text``, ``text_pair`` (if any) and the teacher's raw logits ``[N, C]`` in float32; losses apply a
temperature later. Those of a tagger are ``[W, C]`` for each text, in one list: word after word, not a number where it
did not answer (:mod:`compress.data.tokenization`). ``shard-00000.json`` beside it names the teacher, the tokenizer,
the rows and the checksum.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compress.data import Example
from compress.data.formats.json_parquet import is_string
from compress.data.formats.parquet_pages import batch_rows
from compress.data.formats.table import ALWAYS_BYTES, LARGEST_RATIO
from compress.data.tokenization import by_sentence, word_counts
from compress.errors import CompressError
from compress.files import faults_of, read_json_table, regular_file
from compress.models.manifest import MANIFEST_NAME, Manifest, file_sha256, verify_files
from compress.models.output_dir import write_atomically
from compress.plugins import fits
from compress.recipes import parse

SHARD_ROWS = 2048
_KEPT = ("task", "labels", "parents", "data")


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
class LabelRecord:
    """What is read of the manifest of labels."""

    task: Literal["classification", "regression", "tagging"]
    labels: tuple[str, ...]
    parents: tuple[Mapping[str, Any], ...]
    data: tuple[Mapping[str, Any], ...]

    def faults(self) -> list[str]:
        """Return what the labelling stage does not write."""
        known = all(isinstance(parent.get("sha256"), str) for parent in self.parents)
        counted = all(fits(entry.get("rows"), "int") and entry["rows"] >= 0 for entry in self.data)
        checks = {"labels are missing": self.labels, "parents have no hash": self.parents and known}
        return [fault for fault, holds in {**checks, "data have no rows": counted}.items() if not holds]


@dataclass(frozen=True)
class LabelDir:
    """Pseudo-labels on disk. Make one with :meth:`open`."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, *, part: bool = False) -> Self:
        """Open and check a finished label directory.

        Args:
            part: open a part of labels, instead of whole ones.
        """
        directory = Path(path)
        if not (directory / MANIFEST_NAME).is_file():
            raise CompressError(
                f"{path} is not a finished label directory (no {MANIFEST_NAME}); make one with 'compress label'"
            )
        with faults_of(directory / MANIFEST_NAME, "the manifest of labels", "label the text again"):
            manifest = Manifest.read(directory / MANIFEST_NAME)
            if manifest.kind != "labels":
                raise CompressError(
                    f"{path} is a directory of kind {manifest.kind!r}, not of labels; make one with 'compress label'"
                )
            verify_files(directory, manifest)
            parse(LabelRecord, {name: getattr(manifest, name) for name in _KEPT}, source=str(directory / MANIFEST_NAME))
        opened = cls(directory, manifest)
        if part != ("part" in manifest.notes):
            raise CompressError(
                f"{path} holds whole labels, not a part of them; use it as it is"
                if part
                else f"{path} holds part {manifest.notes['part']} of {manifest.notes.get('parts')} of labels; join all "
                "parts with 'compress labels merge DIR... -o DIR' and use what that writes"
            )
        if not part:
            opened.check_shards()
        return opened

    def check_shards(self) -> None:
        """Raise where shards are missing, or together have other rows than the manifest says."""
        there = {path.name for path in self.path.glob("shard-*.parquet")}
        for number in range(len(there)):
            if shard_path(self.path, number).name not in there:
                raise CompressError(f"{shard_path(self.path, number)} is missing; copy or label the text again")
        found = sum(_open_shard(self.path, number)[0].metadata.num_rows for number in range(len(there)))
        if found != self.rows:
            raise CompressError(
                f"{self.path} has labels of {found:,} rows, and its {MANIFEST_NAME} says {self.rows:,}; copy or label "
                "the text again"
            )

    @property
    def rows(self) -> int:
        return sum(entry["rows"] for entry in self.manifest.data)

    @property
    def teacher_sha256(self) -> str:
        return str(self.manifest.parents[0]["sha256"])

    def __iter__(self) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield every example with its logits ``[C]``, of a tagger ``[W, C]``, a shard in memory at a time."""
        for number in range(len(list(self.path.glob("shard-*.parquet")))):
            examples, logits = read_shard(self.path, number, len(self.manifest.labels), task=self.manifest.task)
            yield from zip(examples, logits, strict=True)


def open_labels(labels: Sequence[LabelDir | str | Path]) -> tuple[LabelDir, ...]:
    """Open the label directories that are not open yet."""
    return tuple(part if isinstance(part, LabelDir) else LabelDir.open(part) for part in labels)


def shard_path(directory: Path, number: int) -> Path:
    return directory / f"shard-{number:05d}.parquet"


def write_shard(
    directory: Path,
    number: int,
    examples: Sequence[Example],
    logits: np.ndarray,
    record: dict[str, Any],
    task: str = "classification",
) -> None:
    """Write one shard, then its manifest: a shard without a valid manifest does not count.

    ``logits`` are ``[N, C]``, where N counts words if the task is tagging.
    """
    columns: dict[str, Any] = {"text": pa.array([e.text for e in examples], pa.string())}
    if examples[0].text_pair is not None:
        columns["text_pair"] = pa.array([e.text_pair for e in examples], pa.string())
    flat = pa.array(np.ascontiguousarray(logits, dtype=np.float32).reshape(-1))
    if task == "tagging":
        ends = np.cumsum([0, *word_counts(examples)]) * logits.shape[1]
        columns["logits"] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat)
    else:
        columns["logits"] = pa.FixedSizeListArray.from_arrays(flat, logits.shape[1])
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
    directory: Path, number: int, classes: int, *, task: str = "classification"
) -> tuple[list[Example], np.ndarray | list[np.ndarray]]:
    """Return a shard's examples and logits ``[N, C]`` float32; of a tagger one array ``[W, C]`` for each example.

    Raises:
        CompressError: it is damaged, or has other columns, types or numbers than labels have.
    """
    path = shard_path(directory, number)
    with faults_of(path, "a shard of labels", "label the text again"):
        file, rows = _open_shard(directory, number)
        names = [name for name in ("text", "text_pair", "logits") if name in file.schema_arrow.names]
        table = pa.Table.from_batches(_bounded(path, file.iter_batches(batch_size=rows, columns=names)))
        columns = {name: table[name].combine_chunks() for name in names}
        logits = columns.pop("logits")
        fault = _fault(columns, logits)
        if fault:
            raise CompressError(f"{path} {fault}; label the text again")
        texts = columns["text"].to_pylist()
        pairs = columns["text_pair"].to_pylist() if "text_pair" in columns else [None] * len(texts)
        examples = [Example(text, pair) for text, pair in zip(texts, pairs, strict=True)]
        values = logits.flatten().to_numpy(zero_copy_only=False)
        counts = word_counts(examples) if task == "tagging" else [1] * len(examples)
        if logits.value_lengths().to_pylist() != [count * classes for count in counts]:
            raise CompressError(
                f"{path} has not {classes} logits for each {'word' if task == 'tagging' else 'text'}, one a class; "
                "label the text again"
            )
        values = values.reshape(sum(counts), classes)
        known = np.isfinite(values).all(axis=1)
        if task == "tagging":  # a word that was cut off has none
            known |= np.isnan(values).all(axis=1)
        if not known.all():
            raise CompressError(
                f"{path} has logits that are not finite numbers (row {np.argmin(known) + 1} of them); label the text "
                "again"
            )
        return examples, by_sentence(values, counts) if task == "tagging" else values


def _bounded(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches as long as all together are no larger than text that was packed; a dictionary may repeat a text."""
    left = max(ALWAYS_BYTES, LARGEST_RATIO * path.stat().st_size)
    for batch in batches:
        left -= batch.nbytes
        if left < 0:
            raise CompressError(f"{path} holds more than {LARGEST_RATIO} times its own size; label the text again")
        yield batch


def _open_shard(directory: Path, number: int) -> tuple[pq.ParquetFile, int]:
    """Return a shard and how many of its rows may be read at a time."""
    path = regular_file(shard_path(directory, number))
    with faults_of(path, "a shard of labels", "label the text again"):
        file = pq.ParquetFile(path)
        with path.open("rb") as stream:
            rows = batch_rows(str(path), stream, file.metadata, path.stat().st_size)
        if not {"text", "logits"} <= set(file.schema_arrow.names) or file.metadata.num_rows > SHARD_ROWS:
            raise CompressError(f"{path} has not at most {SHARD_ROWS:,} rows of text and logits; label the text again")
    return file, rows


def _fault(columns: Mapping[str, pa.Array], logits: pa.Array) -> str:
    """Return what is wrong with the types of a shard's columns; nothing if they are as :func:`write_shard` has them."""
    for name, values in {**columns, "logits": logits}.items():
        if values.null_count:
            return f"has rows without {name}"
    for name, values in columns.items():
        if not is_string(values.type):
            return f"has a column {name} of {values.type}, which is no text"
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(test(logits.type) for test in lists) or logits.type.value_type != pa.float32():
        return f"has logits of type {logits.type}, not lists of float32"
    return "has logits that are null" if logits.flatten().null_count else ""


def shard_is_done(directory: Path, number: int, record: dict[str, Any]) -> bool:
    """Tell whether a shard is whole and was made by the same teacher, tokenizer and plan."""
    path = shard_path(directory, number)
    try:
        written = read_json_table(path.with_suffix(".json"))
    except CompressError:
        return False
    same = all(written.get(key) == value for key, value in record.items())
    return same and path.is_file() and file_sha256(path) == written.get("sha256")
