"""Label directory: texts with the logits of a teacher, as Parquet shards with a manifest each.

A shard holds ``text``, ``text_pair`` (if any) and the teacher's raw logits ``[N, C]`` in float32; losses apply a
temperature later. Those of a tagger are ``[W, C]`` for each text, in one list: word after word, not a number where it
did not answer (:mod:`compress.data.tokenization`). ``shard-00000.json`` beside it names the teacher, the tokenizer,
the rows and the checksum. Labels that come from a table have no teacher (:mod:`compress.labelling.import_labels`).
"""

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compress.data import Example, row_keys
from compress.data.formats.json_parquet import is_string
from compress.data.formats.parquet_pages import batch_rows
from compress.data.formats.table import ALWAYS_BYTES, LARGEST_RATIO
from compress.data.parallel import in_processes
from compress.data.tokenization import by_sentence, word_counts
from compress.errors import CompressError
from compress.escaping.uris import is_uri, without_secrets
from compress.files import faults_of, read_json_table, regular_file
from compress.inference.cores import available_cores
from compress.labelling.remote_labels import local_copy
from compress.models.manifest import MANIFEST_NAME, Manifest, file_sha256, verify_files
from compress.models.model_dir import ModelDir
from compress.models.output_dir import write_atomically
from compress.plugins import fits
from compress.recipes import parse

SHARD_ROWS = 2048
ALONE_SHARDS = 32  # as quick in one process as in several
IMPORTED = "import"  # the stage of labels without a teacher
_KEPT = ("stage", "task", "labels", "parents", "data")


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

    stage: str
    task: Literal["classification", "regression", "tagging"]
    labels: tuple[str, ...]
    parents: tuple[Mapping[str, Any], ...]
    data: tuple[Mapping[str, Any], ...]

    def faults(self) -> list[str]:
        """Return what neither labelling nor importing writes."""
        known = all(isinstance(parent.get("sha256"), str) and parent["sha256"] for parent in self.parents)
        known = known and bool(self.parents) is (self.stage != IMPORTED)
        counted = bool(self.data) and all(fits(entry.get("rows"), "int") and entry["rows"] >= 0 for entry in self.data)
        checks = {"labels are missing": self.labels, "parents have no hash": known}
        return [fault for fault, holds in {**checks, "data have no rows": counted}.items() if not holds]


@dataclass(frozen=True)
class LabelDir:
    """Pseudo-labels on disk. Make one with :meth:`open`; ``order`` is that of its classes where others count them."""

    path: Path
    manifest: Manifest
    order: tuple[int, ...] = ()

    @classmethod
    def open(cls, path: str | Path, *, part: bool = False) -> Self:
        """Open and check a finished label directory, or a copy of one that a URI names.

        Args:
            part: open a part of labels, instead of whole ones.
        """
        if is_uri(path):
            return cls._open_copy(str(path), part=part)
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

    @classmethod
    def _open_copy(cls, uri: str, *, part: bool) -> Self:
        copy = local_copy(uri)
        try:
            return cls.open(copy, part=part)
        except CompressError as error:
            shutil.rmtree(copy, ignore_errors=True)  # if it was damaged here, the next start copies it again
            raise CompressError(f"{without_secrets(uri)}, copied: {error}") from error

    def check_shards(self) -> None:
        """Raise where shards are missing, or together have other rows than the manifest says."""
        there = {path.name for path in self.path.glob("shard-*.parquet")}
        for number in range(len(there)):
            if shard_path(self.path, number).name not in there:
                raise CompressError(f"{shard_path(self.path, number)} is missing; copy or label the text again")
        found = int(self.shards.starts[-1])
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
        """The hash of the teacher; empty where the labels were imported."""
        return str(self.manifest.parents[0]["sha256"]) if self.manifest.parents else ""

    @property
    def teacher_name(self) -> str:
        """The name of the teacher; of imported labels what they are and the file that they come from."""
        if self.manifest.parents:
            return str(self.manifest.parents[0].get("name"))
        return f"{self.manifest.notes.get('values')} of {self.manifest.data[0].get('name')}"

    @property
    def has_zeros(self) -> bool:
        """Whether a class has a probability of 0 in some row, which is not the softmax of any logits."""
        return bool(self.manifest.notes.get("rows_with_zeros"))

    @property
    def origin(self) -> dict[str, Any]:
        """What a manifest records of labels that are not of the student's teacher."""
        return {
            "name": self.teacher_name,
            "sha256": self.teacher_sha256 or str(self.manifest.notes.get("values_sha256")),
        }

    def for_model(self, model: ModelDir) -> Self:
        """Return these labels with the logits in the order of a model's classes, which must have the same names."""
        ours, theirs = model.labels, self.manifest.labels
        if model.task != self.manifest.task:
            raise CompressError(f"{self.path} is of {self.manifest.task}, and {model.name} of {model.task}; use others")
        same = self.teacher_sha256 == model.sha256 or model.task == "regression"  # whose score has any name
        if ours == theirs or same and len(ours) == len(theirs):
            return self
        if sorted(ours) != sorted(theirs):
            raise CompressError(
                f"{self.path} has the classes {', '.join(theirs[:10])}, and {model.name} has {', '.join(ours[:10])}; "
                "they must have the same names ('compress labels import --classes ...' gives imported ones others)"
            )
        return replace(self, order=tuple(map(theirs.index, ours)))

    @cached_property
    def shards(self) -> "Shards":
        numbers = range(len(list(self.path.glob("shard-*.parquet"))))
        sizes = [_open_shard(self.path, number)[0].metadata.num_rows for number in numbers]
        return Shards(self.path, len(self.manifest.labels), self.manifest.task, np.cumsum([0, *sizes]), self.order)

    @cached_property
    def keys(self) -> np.ndarray:
        """The :func:`compress.data.row_keys` of all rows in order, uint64 ``[N]``; on all cores where there are many.

        Raises:
            CompressError: a shard is damaged.
        """
        numbers = range(len(self.shards.starts) - 1)
        processes = len(available_cores()) if len(numbers) > ALONE_SHARDS else 1
        parts = [*in_processes(self.shards.keys, numbers, processes=processes)]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)

    def __iter__(self) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield every example with its logits ``[C]``, of a tagger ``[W, C]``, a shard in memory at a time."""
        return self.shards.rows_at(np.arange(self.shards.starts[-1]))


@dataclass(frozen=True)
class Shards:
    """The shards of a label directory, without its manifest: what processes need to read them.

    ``starts`` are the numbers of the first row of each shard and, last, the number of rows: int64 ``[shards + 1]``.
    ``order`` are the numbers of the classes in the order in which logits are wanted; empty where it is theirs.
    """

    path: Path
    classes: int
    task: str
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
