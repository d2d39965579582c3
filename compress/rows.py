"""Tokenised rows for training, memory-mapped: a pool that does not fit in memory trains all the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compress.tokens import encode, pad

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    from compress.data import Example
    from compress.vocabulary import Mixer

CHUNK_ROWS = 4096
NO_LABEL = -100


@dataclass(frozen=True)
class TrainingRow:
    """One row to learn from: its text, the teacher's logits ``[C]`` and the gold label, as far as there are any."""

    example: Example
    logits: np.ndarray | None = None
    label: int | float | None = None


def write_rows(
    path: Path,
    rows: Iterable[TrainingRow],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    task: str,
    mixer: Mixer | None = None,
) -> Dataset:
    """Tokenise rows into an Arrow file and return it memory-mapped; a file that is there already is reused.

    Columns: ``input_ids``, ``token_type_ids`` (where the tokenizer makes them), ``length``, ``row`` (its number),
    ``labels``, ``teacher_logits``, and with a ``mixer`` ``mixed_ids``.
    """
    import pyarrow as pa
    from datasets import Dataset

    if not path.is_file():
        temporary = path.with_suffix(".tmp")
        writer: pa.ipc.RecordBatchStreamWriter | None = None
        written = 0
        with pa.OSFile(str(temporary), "wb") as sink:
            for chunk in _chunks(rows, CHUNK_ROWS):
                table = _table(chunk, tokenizer, max_length, task, mixer, written)
                written += len(chunk)
                writer = writer or pa.ipc.new_stream(sink, table.schema)
                writer.write_table(table)
            if writer is None:
                raise ValueError("no rows to write")
            writer.close()
        temporary.replace(path)
    return Dataset.from_file(str(path))


def _table(
    chunk: Sequence[TrainingRow],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    task: str,
    mixer: Mixer | None,
    written: int,
) -> Any:
    import pyarrow as pa

    tokens = encode(tokenizer, [row.example for row in chunk], max_length)
    columns: dict[str, Any] = {key: pa.array(values, pa.list_(pa.int32())) for key, values in tokens.items()}
    if mixer:
        columns["mixed_ids"] = pa.array([mixer.ids(row.example, max_length) for row in chunk], pa.list_(pa.int32()))
    columns["row"] = pa.array(range(written, written + len(chunk)), pa.int64())
    columns["length"] = pa.array([len(ids) for ids in tokens["input_ids"]], pa.int32())
    if task == "regression":
        scores = [float("nan") if row.label is None else float(row.label) for row in chunk]
        columns["labels"] = pa.array(scores, pa.float32())
    else:
        columns["labels"] = pa.array([NO_LABEL if row.label is None else int(row.label) for row in chunk], pa.int32())
    if chunk[0].logits is not None:
        columns["teacher_logits"] = pa.array([row.logits for row in chunk], pa.list_(pa.float32()))
    return pa.table(columns)


def collator(padding_id: int, task: str) -> Callable[[list[Mapping[str, Any]]], dict[str, torch.Tensor]]:
    """Return a function that pads rows to the longest of their batch."""
    import torch

    def collate(rows: list[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        keys = [key for key in ("input_ids", "token_type_ids") if key in rows[0]]
        arrays = pad([{key: row[key] for key in keys} for row in rows], padding_id)
        batch = {key: torch.from_numpy(values) for key, values in arrays.items()}
        kind = torch.float32 if task == "regression" else torch.long
        batch["labels"] = torch.tensor([row["labels"] for row in rows], dtype=kind)
        batch["rows"] = torch.tensor([row["row"] for row in rows])
        if "mixed_ids" in rows[0]:
            mixed = pad([{"input_ids": row["mixed_ids"]} for row in rows], padding_id)
            batch["mixed_ids"] = torch.from_numpy(mixed["input_ids"])
            batch["mixed_mask"] = torch.from_numpy(mixed["attention_mask"])
        if "teacher_logits" in rows[0]:
            batch["teacher_logits"] = torch.tensor([row["teacher_logits"] for row in rows], dtype=torch.float32)
        return batch

    return collate


def _chunks(rows: Iterable[TrainingRow], size: int) -> Iterator[list[TrainingRow]]:
    stream = iter(rows)
    while chunk := list(itertools.islice(stream, size)):
        yield chunk
