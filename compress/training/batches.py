"""Batches of memory-mapped rows: padding, masking, order, the part of each process, and means over all its rows.

The processes of a command compute together what one would: the rows of a step, its loss and its gradients are the same,
but for rounding and for what is drawn at random within a step (dropout, masked tokens, replaced modules).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import BatchSampler, Sampler
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from compress.data.tokenization import pad
from compress.errors import CompressError
from compress.inference import processes
from compress.models.batch import NO_TARGET, Batch
from compress.tasks import NO_LABEL

BATCHES_SORTED = 50  # at a time


def collator(padding_id: int) -> Callable[[list[Mapping[str, Any]]], dict[str, torch.Tensor]]:
    """Return a function that pads rows to the longest of their batch."""

    def collate(rows: list[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        keys = [key for key in ("input_ids", "token_type_ids", "words") if key in rows[0]]
        padded = pad([{key: row[key] for key in keys} for row in rows], padding_id)
        batch = {key: torch.from_numpy(values) for key, values in padded.items()}
        goals = {key: [row[key] for row in rows] for key in ("labels", "teacher_logits") if key in rows[0]}
        if "words" in batch:  # labels and logits have one row a word
            batch["words"] = batch["words"].bool()
            goals = {key: list(itertools.chain.from_iterable(values)) for key, values in goals.items()}
        batch["labels"] = torch.tensor(goals["labels"])  # classes int64, scores float32
        batch["rows"] = torch.tensor([row["row"] for row in rows])
        if "mixed_ids" in rows[0]:
            mixed = pad([{"input_ids": row["mixed_ids"]} for row in rows], padding_id)
            batch["mixed_ids"] = torch.from_numpy(mixed["input_ids"])
            batch["mixed_mask"] = torch.from_numpy(mixed["attention_mask"])
        if "teacher_logits" in goals:
            batch["teacher_logits"] = torch.tensor(goals["teacher_logits"], dtype=torch.float32)
        return batch

    return collate


def column(rows: Dataset, name: str) -> np.ndarray:
    """Return a column ``[N]``, read at once: rows one by one would take a minute a million."""
    found: np.ndarray = rows.select_columns(name).with_format("numpy")[:][name]
    return found


def shortest_first(rows: Dataset) -> Dataset:
    """Return the rows, shortest first, so that batches of neighbours hold little padding."""
    return rows.select(np.argsort(column(rows, "length"), kind="stable"))


def batches_by_length(
    rows: Dataset, collate: Callable[..., dict[str, torch.Tensor]], size: int, device: str | torch.device
) -> Iterator[tuple[np.ndarray, Batch]]:
    order = np.argsort(column(rows, "length"), kind="stable")
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        tensors = collate([rows[int(row)] for row in chosen])
        yield chosen, batch_of({name: tensor.to(device) for name, tensor in tensors.items()})


def batch_of(tensors: Mapping[str, torch.Tensor], **fields: Any) -> Batch:
    """Return the tensors of :func:`collator` as a batch, without the teacher's logits; ``fields`` are others of it."""
    kept: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if name != "teacher_logits"}
    return Batch(**kept, **fields)


class Masker:
    """Masks a ``share`` of the tokens of every batch anew, from torch's global generator, which checkpoints keep.

    Devlin et al. 2019, "BERT" (arXiv:1810.04805), section 3.1: of the chosen tokens 80% become the mask token, 10% a
    random one, and 10% stay as they are.

    Raises:
        CompressError: the tokenizer has no mask token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, share: float) -> None:
        if tokenizer.mask_token_id is None:
            raise CompressError(
                "a phase masks tokens, and this tokenizer has no mask token; use a teacher whose tokenizer has one, or "
                "a student without masking"
            )
        self.collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=share)
        self.special_ids = torch.tensor(sorted(tokenizer.all_special_ids))

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with masked ``input_ids`` and the original ids as ``targets`` ``[B, T]``."""
        ids = batch.input_ids.cpu()  # where transformers draws
        special = (batch.attention_mask.cpu() == 0) | torch.isin(ids, self.special_ids)
        masked, targets = self.collator.torch_mask_tokens(ids.clone(), special)
        device = batch.input_ids.device
        return replace(batch, input_ids=masked.to(device), targets=targets.to(device))


class EpochSampler(Sampler[int]):
    """Batches of similar length in an order that depends on seed and epoch only.

    The order is that of ``transformers.trainer_pt_utils.LengthGroupedSampler``, which needs 200 bytes and ten
    microseconds a row. A run resumed in its third epoch reads the same batches as an uninterrupted one.

    Args:
        lengths: tokens of each row ``[N]``.
    """

    def __init__(self, batch_size: int, lengths: np.ndarray, *, seed: int) -> None:
        self.batch_size = batch_size
        self.lengths = np.asarray(lengths)
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        """Called by the training loop, through accelerate's data loader."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(self.seed + self.epoch)).numpy()
        size = self.batch_size * min(max(len(self) // (self.batch_size * 4), 1), BATCHES_SORTED)
        starts = np.arange(0, len(self), size)
        # The longest row comes first, so that what memory cannot hold fails at once.
        longest = starts[np.maximum.reduceat(self.lengths[order], starts).argmax()]
        for start in starts.tolist():
            block = order[start : start + size]
            order[start : start + size] = block[np.argsort(-self.lengths[block], kind="stable")]
        order[[0, longest]] = order[[longest, 0]]
        for start in starts.tolist():
            yield from order[start : start + size].tolist()


class ProcessBatches(BatchSampler):
    """The part of this process of every batch: the batches of all processes are together those of one.

    Of a last batch of fewer rows than processes, some get the first row, which :func:`shares` gives no weight.
    """

    def __iter__(self) -> Iterator[list[int]]:
        for batch in super().__iter__():
            yield batch[processes.rank() :: processes.active()] or batch[:1]


def counts_of(batch: Batch) -> dict[str, int | Tensor]:
    """Return how many there are in a batch of what losses are means over.

    ``answers``: texts, or words of a tagger; ``texts``; ``tokens`` and ``pairs`` of tokens without padding; ``labels``:
    answers with a gold label; ``targets``: masked tokens.
    """
    lengths, labels, targets = batch.attention_mask.sum(dim=1), batch.labels, batch.targets
    return {
        "answers": len(batch.input_ids) if batch.words is None else batch.words.sum(),
        "texts": len(batch.input_ids),
        "tokens": lengths.sum(),
        "pairs": lengths.square().sum(),
        "labels": 0 if labels is None else ((labels != NO_LABEL) & ~labels.isnan()).sum(),
        "targets": 0 if targets is None else (targets != NO_TARGET).sum(),
    }


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by the mean over the processes.

    ``DistributedDataParallel`` finds out by the outputs of a forward pass which parameters get a gradient. Here losses
    use modules of their own after it, by-layer phases read some of the layers, and module replacing leaves others out
    by chance. A parameter that has no gradient in any process has none afterwards, so that the optimiser skips it as
    it does in one process.
    """
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    present = processes.total(torch.tensor([float(parameter.grad is not None) for parameter in learning]))
    shared = [parameter for parameter, having in zip(learning, present.tolist(), strict=True) if having]
    own = [torch.zeros_like(one) if one.grad is None else one.grad for one in shared]
    means = processes.total(torch.cat([gradient.flatten() for gradient in own])).div_(processes.active())
    for parameter, mean in zip(shared, means.split([one.numel() for one in shared]), strict=True):
        parameter.grad = mean.view_as(parameter)


def shares(batch: Batch, *, step: int, batch_size: int, rows: int) -> dict[str, Tensor]:
    """Return the share of this process in what the batch of all processes holds, times their number.

    The mean over processes of their losses, each times the share in what it is a mean over, is the loss of the whole
    batch.

    Args:
        step: optimiser steps before this one.
        batch_size: rows a step, of all processes.
        rows: rows an epoch.
    """
    own = counts_of(batch)
    counts = torch.stack([torch.as_tensor(n, dtype=torch.float64).to(batch.input_ids.device) for n in own.values()])
    if step % math.ceil(rows / batch_size) * batch_size + processes.rank() >= rows:  # no row of a last batch is its own
        counts.zero_()
    of_all = processes.total(counts.clone()).clamp(min=1)
    return dict(zip(own, (processes.active() * counts / of_all).float(), strict=True))
