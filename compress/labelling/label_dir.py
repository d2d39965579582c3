"""Label directories: texts with the logits of a teacher, as Parquet shards, each with a manifest of its own.

A shard holds ``text``, ``text_pair`` (if any) and the teacher's raw logits ``[N, C]`` in float32; losses apply a
temperature later. Those of a tagger are ``[W, C]`` for each text, in one list: word after word, not a number where it
did not answer (:mod:`compress.data.tokenization`). ``shard-00000.json`` beside it names the teacher, the tokenizer,
the rows and the checksum.

Labels that come from a table have no teacher (:mod:`compress.labelling.import_labels`). Several directories of the same
texts count as one by the weighted mean of their probabilities, the prediction that is closest to those of all teachers
in the sense of the loss kl: ``sum_k w_k KL(p_k || q)`` is least at ``q = sum_k w_k p_k``, and at temperature 1 the
gradient of a student is the same as from each teacher in turn. Hinton et al. 2015 (arXiv:1503.02531) take this mean or
the geometric one, which is that of the logits; there one teacher that is certain outweighs all others.
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compress.data import ContentFingerprint, Example, batched, data_entry, row_keys
from compress.data.formats.parquet import batch_rows, is_string
from compress.data.tokenization import check_one_kind
from compress.data.truncation import Truncation
from compress.errors import CompressError, refuse, some_of
from compress.escaping import is_uri, local_path, without_secrets
from compress.files import (
    ALWAYS_BYTES,
    LARGEST_RATIO,
    faults_of,
    read_json_table,
    regular_file,
    write_atomically,
    write_json_lines,
)
from compress.labelling.remote_labels import local_copy
from compress.models.manifest import MANIFEST_NAME, Manifest, file_sha256, verify_files
from compress.models.model_dir import Model
from compress.progress import logger
from compress.requests.labelling import LANGUAGE_MODEL
from compress.tasks import Task, everything, find_task

IMPORTED = "import"  # the stage of labels without a teacher
UNANSWERED, UNANSWERED_NAME = "unanswered", "unanswered.jsonl"
# Questions, tokens and USD of a language model: in notes, and in the record of a shard by the keys of texts.
BOUGHT = "bought"
ROWS_ASKED = "rows_asked"  # in the notes of labels that end early: how many rows the text has, if that is known
SHARD_ROWS = 2048
_AGAIN = "label the text again"


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
        for number, (first, last) in enumerate(itertools.pairwise(np.searchsorted(numbers, self.starts).tolist())):
            if first < last:
                examples, logits = read_shard(self.path, number, self.classes, task=self.task)
                for row in (numbers[first:last] - self.starts[number]).tolist():
                    yield examples[row], logits[row][..., self.order] if self.order else logits[row]


@dataclass(frozen=True)
class CombinedShards(Shards):
    """The shards of label directories of the same texts in the same order; one of each is in memory at a time."""

    parts: tuple[Shards, ...] = ()
    weights: tuple[float, ...] = ()

    def rows_at(self, numbers: np.ndarray) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield examples with the logits of their mean probabilities, of a regression with their mean score."""
        shares = np.asarray(self.weights) / sum(self.weights)
        rows_of_parts = zip(*(part.rows_at(numbers) for part in self.parts), strict=True)
        for start, rows in enumerate(batched(rows_of_parts, SHARD_ROWS)):
            numbers_here = numbers[start * SHARD_ROWS :]
            examples = [self._same(row, int(number)) for row, number in zip(rows, numbers_here, strict=False)]
            columns = [[logits for _, logits in column] for column in zip(*rows, strict=True)]
            mean = self.task.mean_logits(np.stack([np.vstack(one).astype(np.float64) for one in columns]), shares)
            yield from zip(examples, self.task.by_row(mean.astype(np.float32), examples), strict=True)

    def _same(self, row: Sequence[tuple[Example, np.ndarray]], number: int) -> Example:
        first, *others = (example for example, _ in row)
        for other, part in zip(others, self.parts[1:], strict=True):
            if other != first:
                rows = f"{part.path} is {other.text[:40]!r}, and of {self.path} {first.text[:40]!r}"
                advice = "labels are combined row by row, so label one file with every teacher"
                raise CompressError(f"row {number + 1:,} of {rows}; {advice}")
        return first


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
    if any(e.text_pair is not None for e in examples):
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
        table = pa.table(columns)
        with pq.ParquetWriter(temporary, table.schema, compression="zstd") as writer:
            if examples:  # a language model may answer none of them
                writer.write_table(table)
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
        batches = _bounded(path, file.iter_batches(batch_size=rows, columns=names), 4 * classes * SHARD_ROWS)
        table = pa.Table.from_batches(batches, pa.schema([file.schema_arrow.field(name) for name in names]))
        *texts, logits = (table[name].combine_chunks() for name in names)
        kind = logits.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        sound = is_list and kind.value_type == pa.float32() and all(is_string(column.type) for column in texts)
        sound = sound and not any(column.null_count for column in (*texts, logits, logits.flatten()))
        refuse((not sound, f"{path} has not the columns that labels have; {_AGAIN}"))
        examples = [Example(*row) for row in zip(*(column.to_pylist() for column in texts), strict=True)]
        values = logits.flatten().to_numpy(zero_copy_only=False)
        counts = task.answer_counts(examples) or [1] * len(examples)
        sound = logits.value_lengths().to_pylist() == [count * classes for count in counts]
        each = "word" if task.by_word else "text"
        refuse((not sound, f"{path} has not {classes} logits for each {each}, one a class; {_AGAIN}"))
        values = values.reshape(sum(counts), classes)
        known = np.isfinite(values).all(axis=1)
        if task.by_word:  # a word that was cut off has none
            known |= np.isnan(values).all(axis=1)
        where = f"row {np.argmin(known) + 1} of them" if len(known) else ""
        refuse((not known.all(), f"{path} has logits that are not finite numbers ({where}); {_AGAIN}"))
        return examples, task.by_row(values, examples)


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


def answer_notes(directory: Path) -> dict[str, Any]:
    """Return what the notes of a manifest say of a language model's answers: rows without a label, and the cost.

    The rows are written to a file of their own. Nothing is returned of another teacher.
    """
    records = [read_json_table(path) for path in sorted(directory.glob("shard-*.json"))]
    rows = [row for record in records for row in record.get(UNANSWERED, ())]
    if rows:
        write_json_lines(directory / UNANSWERED_NAME, rows)
    # Equal texts, which several shards may hold, are paid once.
    costs = [*{key: cost for record in records for key, cost in record.get(BOUGHT, {}).items()}.values()]
    names = [name for name in costs[0] if all(name in one for one in costs)] if costs else []  # USD not of all, maybe
    bought = {name: round(sum(float(one[name]) for one in costs), 6) for name in names}
    notes = {
        UNANSWERED: len(rows),
        BOUGHT: {name: bought[name] if name == "usd" else int(bought[name]) for name in names},
    }
    return {name: value for name, value in notes.items() if value}


def described_cost(bought: Mapping[str, Any]) -> str:
    """Return what answers of a language model took, for a message.

    Raises:
        CompressError: it is not what :func:`answer_notes` gives.
    """
    try:
        usd = f", {bought['usd']:.4f} USD" if "usd" in bought else ""
        asked = f"{bought['questions']:,} questions, {bought['input_tokens']:,} tokens read"
        return f"{asked} and {bought['output_tokens']:,} written{usd}"
    except (KeyError, TypeError, ValueError):
        raise CompressError(
            f"labels say what they cost in another form, {bought!r:.80}; label the texts again"
        ) from None


def kept_entry(directory: Path, manifest: Manifest, name: str) -> dict[str, Any]:
    """Return the data entry of the rows that the shards of a directory hold."""
    numbers = range(len([*directory.glob("shard-*.parquet")]))
    task, classes = find_task(manifest.task), len(manifest.labels)
    shards = (read_shard(directory, number, classes, task=task)[0] for number in numbers)
    fingerprint = ContentFingerprint(itertools.chain.from_iterable(shards))
    refuse((not fingerprint.rows, f"no row of {name} got a label; correct --prompt"))
    return data_entry("unlabeled", name, fingerprint)


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


@dataclass(frozen=True)
class LabelDir:
    """Pseudo-labels on disk. Make one with :meth:`open`.

    ``order`` is that of its classes where others count them; ``parts`` are the directories whose mean it is, each with
    its weight (:func:`combine_labels`).
    """

    path: Path
    manifest: Manifest
    order: tuple[int, ...] = ()
    parts: "tuple[LabelDir, ...]" = ()
    weights: tuple[float, ...] = ()

    @classmethod
    def open(cls, path: str | Path, *, part: bool = False) -> Self:
        """Open and check a finished label directory, or a copy of one that a URI names.

        Args:
            part: open a part of labels, instead of whole ones.
        """
        if is_uri(path := local_path(str(path))):
            copy = local_copy(path)
            try:
                return cls.open(copy, part=part)
            except CompressError as error:
                shutil.rmtree(copy, ignore_errors=True)  # if it was damaged here, the next start copies it again
                raise CompressError(f"{without_secrets(path)}, copied: {error}") from error
        directory = Path(path)
        place = directory / MANIFEST_NAME
        refuse(
            (
                not place.is_file(),
                f"{path} is not a finished label directory (no {MANIFEST_NAME}); make one with 'compress label'",
            )
        )
        with faults_of(place, "the manifest of labels", "label the text again"):
            opened = cls(directory, Manifest.read(place))
            opened._check(part)
        if not part:
            opened.check_shards()
        return opened

    def _check(self, part: bool) -> None:
        """Raise where the manifest is none of labels, or of a part of them, or files are not those that it names."""
        manifest, notes = self.manifest, self.manifest.notes
        refuse(
            (
                manifest.kind != "labels",
                f"{self.path} is a directory of kind {manifest.kind!r}, not of labels; make one with 'compress label'",
            )
        )
        known = all(parent["sha256"] for parent in manifest.parents)
        holds = {
            f"task = {manifest.task!r} is not one of {', '.join(everything())}": manifest.task in everything(),
            "labels are missing": manifest.labels,
            "parents have no hash": known and bool(manifest.parents) is (manifest.stage != IMPORTED),
            "data have no rows": manifest.data and all(entry["rows"] >= 0 for entry in manifest.data),
        }
        faults = [fault for fault, right in holds.items() if not right]
        refuse((faults, f"{self.path / MANIFEST_NAME}: {'; '.join(faults)}; label the text again"))
        for entry in os.scandir(self.path):
            refuse(
                (
                    entry.is_symlink() and not Path(entry).resolve().is_relative_to(self.path.resolve()),
                    f"{entry.path} is a link that leaves its directory; copy the file itself there",
                )
            )
        verify_files(self.path, manifest)
        if part != ("part" in notes):
            raise CompressError(
                f"{self.path} holds whole labels, not a part of them; use it as it is"
                if part
                else f"{self.path} holds part {notes['part']} of {notes.get('parts')} of labels; join all parts with "
                "'compress labels merge DIR... -o DIR' and use what that writes"
            )

    def check_shards(self) -> None:
        """Raise where shards are missing, or together have other rows than the manifest says."""
        there = {path.name for path in self.path.glob("shard-*.parquet")}
        for number in range(len(there)):
            refuse(
                (
                    shard_path(self.path, number).name not in there,
                    f"{shard_path(self.path, number)} is missing; copy or label the text again",
                )
            )
        found = int(self.shards.starts[-1])
        said = f"labels of {found:,} rows, and its {MANIFEST_NAME} says {self.rows:,}; copy or label the text again"
        refuse((found != self.rows, f"{self.path} has {said}"))

    @property
    def rows(self) -> int:
        return sum(entry["rows"] for entry in self.manifest.data)

    @property
    def described_rows(self) -> str:
        """How many rows there are, and of how many where labelling ended early: ``2,048 of 10,000 rows``."""
        asked = self.manifest.notes.get(ROWS_ASKED, self.rows)
        of = "" if asked == self.rows else f" of {asked:,}" if isinstance(asked, int) else " of a longer text's"
        return f"{self.rows:,}{of} rows"

    @property
    def teacher_sha256(self) -> str:
        """The hash of the model that is the teacher; empty where labels are imported, of several, or of a server's."""
        known = self.manifest.parents and not self.parts and not self.teacher_name.startswith(LANGUAGE_MODEL)
        return str(self.manifest.parents[0]["sha256"]) if known else ""

    @property
    def teacher_name(self) -> str:
        """The name of the teacher; of imported labels what they are and the file that they come from."""
        if self.parts:
            weights = [f"{weight:g} x " if len(set(self.weights)) > 1 else "" for weight in self.weights]
            names = [f"{weight}{part.teacher_name}" for weight, part in zip(weights, self.parts, strict=True)]
            return f"the mean of {', '.join(names)}"
        if self.manifest.parents:
            return str(self.manifest.parents[0].get("name"))
        return f"{self.manifest.notes.get('values')} of {self.manifest.data[0].get('name')}"

    @property
    def has_zeros(self) -> bool:
        """Whether a class has a probability of 0 in some row, which is not the softmax of any logits."""
        return any(part.manifest.notes.get("rows_with_zeros") for part in self.parts or (self,))

    @property
    def origin(self) -> dict[str, Any]:
        """What a manifest records of labels that are not of the student's teacher."""
        if not self.parts:
            known = (
                self.manifest.parents[0]["sha256"]
                if self.manifest.parents
                else self.manifest.notes.get("values_sha256")
            )
            bought = self.manifest.notes.get(BOUGHT)
            cost = {"cost": described_cost(bought)} if bought else {}
            return {"name": self.teacher_name, "sha256": str(known), **cost}
        weighted = zip(self.parts, self.weights, strict=True)
        return {"name": self.teacher_name, "mean_of": [{**part.origin, "weight": weight} for part, weight in weighted]}

    def for_model(self, model: Model) -> Self:
        """Return these labels with the logits in the order of a model's classes, which must have the same names."""
        ours, theirs = model.labels, self.manifest.labels
        refuse(
            (
                model.task != self.manifest.task,
                f"{self.path} is of {self.manifest.task}, and {model.name} of {model.task}; use others",
            )
        )
        same = self.teacher_sha256 == model.sha256 or not model.task.has_classes  # whose score has any name
        if ours == theirs or same and len(ours) == len(theirs):
            return self
        if sorted(ours) != sorted(theirs):
            lacking = {self.path: set(ours) - set(theirs), model.name: set(theirs) - set(ours)}
            said = "; ".join(f"{name} lacks {some_of(sorted(names))}" for name, names in lacking.items() if names)
            raise CompressError(
                f"{self.path} and {model.name} have other classes: {said}; they must have the same names ('compress "
                "labels import --classes ...' gives imported ones others)"
            )
        return replace(self, order=tuple(map(theirs.index, ours)))

    @cached_property
    def shards(self) -> Shards:
        numbers = range(len(list(self.path.glob("shard-*.parquet"))))
        sizes = [open_shard(self.path, number)[0].metadata.num_rows for number in numbers]
        task, starts = find_task(self.manifest.task), np.cumsum([0, *sizes])
        found = Shards(self.path, len(self.manifest.labels), task, starts, self.order)
        parts = tuple(part.shards for part in self.parts)
        return CombinedShards(**vars(found), parts=parts, weights=self.weights) if parts else found

    @cached_property
    def keys(self) -> np.ndarray:
        """The :func:`compress.data.row_keys` of all rows in order, uint64 ``[N]``.

        Raises:
            CompressError: a shard is damaged.
        """
        classes, task, numbers = self.shards.classes, self.shards.task, range(len(self.shards.starts) - 1)
        shards = (read_shard(self.path, number, classes, task=task)[0] for number in numbers)
        return row_keys(itertools.chain.from_iterable(shards))

    def __iter__(self) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield every example with its logits ``[C]``, of a tagger ``[W, C]``, a shard in memory at a time."""
        return self.shards.rows_at(np.arange(self.shards.starts[-1]))


def open_labels(labels: Sequence[LabelDir | str | Path]) -> tuple[LabelDir, ...]:
    """Open the label directories that are not open yet, and say which of them end early."""
    opened = tuple(part if isinstance(part, LabelDir) else LabelDir.open(part) for part in labels)
    for part in opened:
        if ROWS_ASKED in part.manifest.notes:
            logger.info("labels: %s holds %s, where labelling ended early", part.path, part.described_rows)
    return opened


def combine_labels(parts: Sequence[LabelDir], weights: Sequence[float] = ()) -> LabelDir:
    """Return label directories as one, each with its weight (by default the same).

    Raises:
        CompressError: there are fewer than two, or they have different numbers of rows.
    """
    given = ", ".join(map(str, weights))
    refuse(
        (len(parts) < 2, "--combine takes two label directories or more; give --labels DIR for each"),
        (
            weights and len(weights) != len(parts),
            f"there are {len(parts)} label directories and {len(weights)} weights; give one for each",
        ),
        (
            not all(1e-100 <= weight <= 1e100 for weight in weights),
            f"the weights {given} must be numbers above 0, from 1e-100 to 1e100; leave the others out",
        ),
    )
    for one, other in itertools.pairwise(parts):
        fault = f"{one.path} has {one.rows:,} rows, and {other.path} has {other.rows:,}"
        advice = "labels are combined row by row, so label one file with every teacher"
        refuse((one.rows != other.rows, f"{fault}; {advice}"))
    return replace(parts[0], parts=tuple(parts), weights=tuple(weights) or (1.0,) * len(parts))
