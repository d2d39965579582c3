"""Tokenised training rows in a memory-mapped Arrow file, and their batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from compress.data.examples import Example, batched
from compress.data.text_encoder import TokenRows
from compress.data.tokenization import encode, pad
from compress.models.batch import Batch
from compress.training.learned_vocabulary import Mixer

ENCODED_ROWS = 4096
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
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    task: str,
    mixer: Mixer | None = None,
) -> Dataset:
    """Tokenise rows into an Arrow file and return it memory-mapped; an existing file is reused.

    Columns: ``input_ids``, ``token_type_ids`` (where the tokenizer makes them), ``length``, ``row`` (its number),
    ``labels``, ``teacher_logits``, and with a ``mixer`` ``mixed_ids``. For tagging there is also ``words``, 1 for every
    token where a word starts, and labels and logits are lists over these words; truncated words and words
    without teacher logits are left out, and so are rows without any other.
    """
    if not path.is_file():
        temporary = path.with_suffix(".tmp")
        tables = _tables(rows, tokenizer, max_length, task, mixer)
        first = next(tables, None)
        if first is None:
            raise ValueError("no rows to write")
        with pa.ipc.new_stream(str(temporary), first.schema) as writer:
            for table in itertools.chain([first], tables):
                writer.write_table(table)
        temporary.replace(path)
    return Dataset.from_file(str(path))


def _tables(
    rows: Iterable[TrainingRow], tokenizer: PreTrainedTokenizerFast, max_length: int, task: str, mixer: Mixer | None
) -> Iterator[Any]:
    """Yield the Arrow tables of :func:`write_rows`."""
    written = 0
    for chunk in batched(rows, ENCODED_ROWS):
        tokens = encode(tokenizer, [row.example for row in chunk], max_length, task=task)
        has_logits = chunk[0].logits is not None
        if task == "tagging":
            chunk, tokens = _answered(chunk, tokens)
        columns: dict[str, Any] = {key: pa.array(values, pa.list_(pa.int32())) for key, values in tokens.items()}
        if mixer:
            columns["mixed_ids"] = pa.array([mixer.ids(row.example, max_length) for row in chunk], pa.list_(pa.int32()))
        columns["row"] = pa.array(range(written, written + len(chunk)), pa.int64())
        columns["length"] = pa.array([len(ids) for ids in tokens["input_ids"]], pa.int32())
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


def _answered(chunk: Sequence[TrainingRow], tokens: TokenRows) -> tuple[list[TrainingRow], TokenRows]:
    """Return the rows with the logits and labels of the words that are trained on, and their tokens."""
    rows: list[TrainingRow] = []
    kept: list[dict[str, np.ndarray]] = []
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
        kept.append({**own, "words": (np.array(starts) > 0).astype(np.int64)})
    return rows, {key: [row[key] for row in kept] for key in tokens}


def collator(padding_id: int, task: str) -> Callable[[list[Mapping[str, Any]]], dict[str, torch.Tensor]]:
    """Return a function that pads rows to the longest of their batch."""

    def collate(rows: list[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        keys = [key for key in ("input_ids", "token_type_ids", "words") if key in rows[0]]
        padded = pad([{key: row[key] for key in keys} for row in rows], padding_id)
        batch = {key: torch.from_numpy(values) for key, values in padded.items()}
        goals = {key: [row[key] for row in rows] for key in ("labels", "teacher_logits") if key in rows[0]}
        if "words" in batch:  # labels and logits have one row a word
            batch["words"] = batch["words"].bool()
            goals = {key: list(itertools.chain.from_iterable(values)) for key, values in goals.items()}
        batch["labels"] = torch.tensor(goals["labels"], dtype=torch.float32 if task == "regression" else torch.long)
        batch["rows"] = torch.tensor([row["row"] for row in rows])
        if "mixed_ids" in rows[0]:
            mixed = pad([{"input_ids": row["mixed_ids"]} for row in rows], padding_id)
            batch["mixed_ids"] = torch.from_numpy(mixed["input_ids"])
            batch["mixed_mask"] = torch.from_numpy(mixed["attention_mask"])
        if "teacher_logits" in goals:
            batch["teacher_logits"] = torch.tensor(goals["teacher_logits"], dtype=torch.float32)
        return batch

    return collate


def lengths_of(rows: Dataset) -> np.ndarray:
    """Return the tokens of each row ``[N]``; read at once, as rows one by one would take a minute a million."""
    found: np.ndarray = rows.select_columns("length").with_format("numpy")[:]["length"]
    return found


def batches_by_length(
    rows: Dataset, collate: Callable[..., dict[str, torch.Tensor]], size: int, device: str | torch.device
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield row numbers and their batch on a device, shortest rows first."""
    order = np.argsort(lengths_of(rows), kind="stable")
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        tensors = collate([rows[int(row)] for row in chosen])
        yield chosen, batch_of({name: tensor.to(device) for name, tensor in tensors.items()})


def batch_of(tensors: Mapping[str, torch.Tensor]) -> Batch:
    """Return the tensors of :func:`collator` as a batch, without the teacher's logits."""
    return Batch(**{name: tensor for name, tensor in tensors.items() if name != "teacher_logits"})
