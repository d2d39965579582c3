"""Memory-mapped training rows, and their batches."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets

from compress.data.tokenization import pad
from compress.models.batch import Batch


def mapped_rows(*paths: Path) -> Dataset:
    """Return the rows of files that :mod:`compress.training.tokenized_rows` wrote, memory-mapped."""
    return concatenate_datasets([Dataset.from_file(str(path)) for path in paths])


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


def truncated_rows(rows: Dataset) -> int:
    """Return how many rows were cut."""
    return int(rows.select_columns("truncated").with_format("numpy")[:]["truncated"].sum())


def shortest_first(rows: Dataset) -> Dataset:
    """Return the rows, shortest first, so that batches of neighbours hold little padding."""
    return rows.select(np.argsort(lengths_of(rows), kind="stable"))


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
