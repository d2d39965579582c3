"""Tokenise training rows into Arrow files, on all cores where they are many.

Nothing here imports torch: processes that tokenise need none.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from compress.data.examples import Example, batched
from compress.data.parallel import in_processes
from compress.data.stored_tokenizer import AnyTokenizer, PlainTokenizer
from compress.data.text_encoder import TokenRows
from compress.data.tokenization import encode
from compress.inference.cores import core_count
from compress.labelling.shards import Shards
from compress.models.resumption import is_whole, seal

if TYPE_CHECKING:
    from compress.training.learned_vocabulary import Mixer

ENCODED_ROWS = 4096
PART_ROWS = 100_000  # that a process tokenises at a time
NO_LABEL = -100
# Task -> the Arrow type of its labels, and the value of a missing one; for tagging _answered fills those.
LABEL_TYPES: Mapping[str, tuple[Any, float | int | None]] = {
    "classification": (pa.int32(), NO_LABEL),
    "regression": (pa.float32(), float("nan")),
    "tagging": (pa.list_(pa.int32()), None),
}


@dataclass(frozen=True)
class TrainingRow:
    """A training row: its text, and the teacher's logits ``[C]`` and gold label where it has them.

    For tagging the logits are ``[W, C]``, one row a word, and there is a label for each word.
    """

    example: Example
    logits: np.ndarray | None = None
    label: int | float | list[int] | None = None


def write_rows(
    path: Path,
    rows: Iterable[TrainingRow],
    tokenizer: AnyTokenizer,
    *,
    max_length: int,
    task: str,
    mixer: "Mixer | None" = None,
    first: int = 0,
) -> Path:
    """Tokenise rows into an Arrow file and return its path; an existing file is kept.

    Columns: ``input_ids``, ``token_type_ids`` (where the tokenizer makes them), ``length``, ``row`` (its number; the
    first has ``first``), ``truncated`` (whether it was cut), ``labels``, ``teacher_logits``, and with a ``mixer``
    ``mixed_ids``. For tagging there is also ``words``, 1 for every token where a word starts, and labels and logits are
    lists over these words; truncated words and words without teacher logits are left out, and so are rows without any
    other.
    """
    if not is_whole(path):
        temporary = path.with_suffix(".tmp")
        tables = _tables(rows, tokenizer, max_length, task, mixer, first)
        head = next(tables, None)
        if head is None:
            raise ValueError("no rows to write")
        with pa.ipc.new_stream(str(temporary), head.schema) as writer:
            for table in itertools.chain([head], tables):
                writer.write_table(table)
        temporary.replace(path)
        seal(path)
    return path


def _tables(
    rows: Iterable[TrainingRow],
    tokenizer: AnyTokenizer,
    max_length: int,
    task: str,
    mixer: "Mixer | None",
    written: int,
) -> Iterator[Any]:
    """Yield the Arrow tables of :func:`write_rows`."""
    for chunk in batched(rows, ENCODED_ROWS):
        tokens = encode(tokenizer, [row.example for row in chunk], max_length, task=task, counted=False)
        cut = [number in tokens.truncated for number in range(len(chunk))]
        has_logits = chunk[0].logits is not None
        if task == "tagging":
            chunk, tokens, cut = _answered(chunk, tokens, cut)
        columns: dict[str, Any] = {key: pa.array(values, pa.list_(pa.int32())) for key, values in tokens.items()}
        if mixer:
            columns["mixed_ids"] = pa.array([mixer.ids(row.example, max_length) for row in chunk], pa.list_(pa.int32()))
        columns["row"] = pa.array(range(written, written + len(chunk)), pa.int64())
        columns["length"] = pa.array([len(ids) for ids in tokens["input_ids"]], pa.int32())
        columns["truncated"] = pa.array(cut, pa.bool_())
        kind, unknown = LABEL_TYPES[task]
        columns["labels"] = pa.array([unknown if row.label is None else row.label for row in chunk], kind)
        if has_logits:
            logits: list[Any] = [row.logits for row in chunk]
            by_word = task == "tagging"
            columns["teacher_logits"] = pa.array(
                [list(words) for words in logits] if by_word else logits,
                pa.list_(pa.list_(pa.float32())) if by_word else pa.list_(pa.float32()),
            )
        written += len(chunk)
        yield pa.table(columns)


def _answered(
    chunk: Sequence[TrainingRow], tokens: TokenRows, cut: Sequence[bool]
) -> tuple[list[TrainingRow], TokenRows, list[bool]]:
    """Return the rows with the logits and labels of the words that are trained on, their tokens, and which were cut."""
    rows: list[TrainingRow] = []
    kept: list[dict[str, np.ndarray]] = []
    kept_cut: list[bool] = []
    for index, row in enumerate(chunk):
        answered = None if row.logits is None else np.isfinite(row.logits).all(axis=1)
        starts = [s if s and (answered is None or answered[s - 1]) else 0 for s in tokens["words"][index]]
        if not any(starts):
            continue
        words = [start - 1 for start in starts if start]
        labels = row.label if isinstance(row.label, list) else [NO_LABEL] * len(row.example.words)
        logits = None if row.logits is None else row.logits[words]
        rows.append(replace(row, logits=logits, label=[labels[word] for word in words]))
        own = {key: values[index] for key, values in tokens.items()}
        kept_cut.append(cut[index])
        kept.append({**own, "words": (np.array(starts) > 0).astype(np.int64)})
    return rows, TokenRows({key: [row[key] for row in kept] for key in tokens}), kept_cut


class _Part(NamedTuple):
    """Rows of a label directory that become a file: where it is written, and the number of its first row."""

    path: Path
    first: int
    shards: Shards
    numbers: np.ndarray


def write_parts(
    path: Path,
    chosen: Iterable[tuple[Shards, np.ndarray]],
    tokenizer: AnyTokenizer,
    *,
    max_length: int,
    task: str,
) -> list[Path]:
    """Tokenise rows of label directories, given by their numbers, into files beside ``path``, on all cores.

    Existing files are kept, so that a second start goes on after them.
    """
    parts: list[_Part] = []
    first = 0
    for shards, numbers in chosen:
        if not len(numbers):  # all rows of this directory are left out
            continue
        for some in np.split(numbers, range(PART_ROWS, len(numbers), PART_ROWS)):
            parts.append(_Part(path.with_name(f"{path.stem}-{len(parts):04d}.arrow"), first, shards, some))
            first += len(some)
    write = partial(_write_part, PlainTokenizer.of(tokenizer), max_length, task)
    left = [part for part in parts if not is_whole(part.path)]
    for _ in in_processes(write, left, processes=core_count()):
        pass
    return [part.path for part in parts]


def _write_part(tokenizer: AnyTokenizer, max_length: int, task: str, part: _Part) -> None:
    rows = (TrainingRow(example, logits) for example, logits in part.shards.rows_at(part.numbers))
    write_rows(part.path, rows, tokenizer, max_length=max_length, task=task, first=part.first)
