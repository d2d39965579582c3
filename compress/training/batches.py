"""Batches of a training: their order, the part of each process, and means over all rows of a batch.

The processes of a command compute together what one would: the rows of a step, its loss and its gradients are the same,
but for rounding and for what is drawn at random within a step (dropout, masked tokens, replaced modules).
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, Sampler

from compress.inference import processes
from compress.models.batch import NO_TARGET, Batch
from compress.training.tokenized_rows import NO_LABEL

BATCHES_SORTED = 50  # at a time


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
