"""Training rows: text with teacher logits, gold rows, variants, rows that select; tokenised as Arrow files, in batches.

The processes of a command compute together what one would: the rows of a step, its loss and its gradients are the same,
but for rounding and for what is drawn at random within a step (dropout, masked tokens, replaced modules).
"""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import BatchSampler, Sampler
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from compress import plugins
from compress.data import Example, TextSource, among, grouped_split, row_key
from compress.data.examples import batched
from compress.data.sources import is_spread
from compress.data.tokenization import pad
from compress.data.windows import Windows, encode_rows
from compress.errors import CompressError, refuse
from compress.inference import processes
from compress.labelling.label_dir import LabelDir
from compress.labelling.selection import CHOSEN_BY, UNCERTAINTY
from compress.models.batch import NO_TARGET, Batch
from compress.models.manifest import is_whole, seal
from compress.models.model_dir import Model
from compress.progress import logger
from compress.recipes import Augmentation
from compress.tasks import NO_LABEL, Task

ENCODED_ROWS = 4096
HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05
CONTROL_HELD_OUT_SHARE = 0.1  # of gold rows
BATCHES_SORTED = 50  # at a time

# An example and a random generator -> a variant of it, or the example itself where there is none.
Variation = Callable[[Example, random.Random], Example]
# An example and a number of tokens -> its ids in a mixture of two vocabularies.
Mixing = Callable[[Example, int], list[int]]
Collator = Callable[[list[Any]], dict[str, Tensor]]


@dataclass(frozen=True)
class TrainingRow:
    """A training row: its text, and the teacher's logits ``[C]`` and gold label where it has them.

    For tagging the logits are ``[W, C]``, one row a word, and there is a label for each word.
    """

    example: Example
    logits: np.ndarray | None = None
    label: int | float | list[int] | None = None


@dataclass(frozen=True)
class LabelledPool(TextSource):
    """Label directories as training rows: all of them, or those of some ``numbers``, ascending."""

    labels: tuple[LabelDir, ...]
    numbers: np.ndarray | None = None
    identity: frozenset[Any] = frozenset()

    @property
    def name(self) -> str:  # type: ignore[override]  # computed, not set
        return " + ".join(directory.manifest.name for directory in self.labels)

    @property
    def rows(self) -> int:
        return sum(directory.rows for directory in self.labels) if self.numbers is None else len(self.numbers)

    def __iter__(self) -> Iterator[Example]:
        return (row.example for row in self.labelled())

    def labelled(self) -> Iterator[TrainingRow]:
        first = 0
        for directory in self.labels:
            numbers = np.arange(first, first + directory.rows)
            if self.numbers is not None:
                numbers = self.numbers[slice(*np.searchsorted(self.numbers, [first, first + directory.rows]))]
            yield from itertools.starmap(TrainingRow, directory.shards.rows_at(numbers - first))
            first += directory.rows

    def keys(self) -> np.ndarray:
        keys = np.concatenate([np.zeros(0, np.uint64), *(directory.keys for directory in self.labels)])
        return keys if self.numbers is None else keys[self.numbers]

    def where(self, chosen: np.ndarray) -> Self:
        numbers = np.flatnonzero(chosen)
        return replace(self, numbers=numbers if self.numbers is None else self.numbers[numbers])

    def sample(self, rows: int) -> Self:
        return self if self.rows <= rows else self.where(is_spread(np.arange(self.rows), rows, self.rows))

    def without(self, keys: frozenset[bytes]) -> Self:
        return self.where(~among(self.keys(), keys)) if keys else self

    def part(self, *, held: bool) -> Self:
        return self.where((self.keys() < _held_out_below(self.rows)) == held)


def held_out(example: Example, rows: int) -> bool:
    """Tell whether a row of so many is held out from training; by its text alone, so that equal rows stay together."""
    return int.from_bytes(row_key(example), "big") < _held_out_below(rows)


def _held_out_below(rows: int) -> int:
    return math.ceil(min(HELD_OUT_SHARE, HELD_OUT_ROWS / max(rows, 1)) * 2**64)


def check_held_out(
    pool: TextSource, rows: int, *, has_others: bool = False, remedy: str = "give --validation FILE"
) -> None:
    """Refuse text of which nothing is held out, or nothing is left to train on.

    Args:
        rows: how many there are, as :func:`held_out` takes them.
        has_others: whether there are other rows to train on.
    """
    wanted = {True} if has_others else {True, False}
    for example in pool:
        wanted.discard(held_out(example, rows))
        if not wanted:
            return
    raise CompressError(f"{pool.name} has {rows:,} rows, too few different ones to hold some out; {remedy}")


@dataclass(eq=False)
class AugmentedSource(TextSource):
    """A source with up to ``copies`` variants after each of its rows; the same seed gives the same variants.

    A variant that equals its row or an earlier variant of it is left out. So are one that is a held-out row (a short
    phrase can be) and those of a row that is held out itself: what selects has no likeness in what is trained on.
    Without ``originals`` the variants come alone.
    """

    source: TextSource
    vary: Variation
    copies: int
    seed: int
    held_out: Callable[[Example], bool] = lambda example: False
    originals: bool = True

    def __post_init__(self) -> None:
        self.name, self.identity = self.source.name, self.source.identity

    def count(self) -> None:
        """Not known before all variants are made."""

    def __iter__(self) -> Iterator[Example]:
        for example in self.source:
            if self.originals:
                yield example
            if self.held_out(example):
                continue
            # Seeded by the row, not by its place, so that a resumed run draws the same variants.
            generator = random.Random(row_key(example) + self.seed.to_bytes(8, "big"))
            met = {(example.text, example.text_pair)}
            for _ in range(self.copies):
                variant = self.vary(example, generator)
                texts = (variant.text, variant.text_pair)
                if texts not in met and not self.held_out(variant):
                    met.add(texts)
                    yield Example(*texts)


def augmented(
    source: TextSource,
    augmentation: Augmentation,
    teacher: Model,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    held_out: Callable[[Example], bool] = lambda example: False,
    originals: bool = True,
) -> AugmentedSource:
    """Return a source with its variants, as a recipe's ``[augmentation]`` describes them.

    Args:
        teacher: whose embeddings and special tokens an augmenter may use, with its ``tokenizer``.
        held_out: tells rows that no variant may be, and of which none is made.
    """
    by = augmentation.by
    vary = plugins.find("augmenters", by.name).function(teacher, tokenizer, source, **by.options)
    return AugmentedSource(source, vary, augmentation.copies, seed, held_out, originals)


def one_of(examples: Iterable[Example]) -> Callable[[Example], bool]:
    """Return what tells whether a row has the words of one of these."""
    keys = frozenset(map(row_key, examples))
    return lambda example: row_key(example) in keys


@dataclass(frozen=True)
class Gold:
    """Gold-labelled rows: class ids or scores, and the teacher's logits ``[N, C]`` where it was run.

    For tagging there is a list of tag ids and an array of logits ``[W, C]`` for each sentence.
    """

    examples: Sequence[Example] = ()
    labels: Sequence[int | float | list[int]] = ()
    logits: np.ndarray | list[np.ndarray] | None = None

    def rows(self) -> Iterator[TrainingRow]:
        logits = [None] * len(self.examples) if self.logits is None else self.logits
        return map(TrainingRow, self.examples, logits, self.labels)


@dataclass(frozen=True)
class Selection:
    """Rows that select the best checkpoint, and the name of their split in the manifest.

    Of tokenised rows, which ``windows`` may have cut, ``documents`` ``[N]`` are the rows that they are of, and
    ``queries`` ``[N]`` are those whose rows the metric ranks, if it does.
    """

    rows: Sequence[TrainingRow] | Dataset
    split: str
    metric: str | None
    queries: np.ndarray | None = None
    windows: Windows | None = None
    documents: np.ndarray | None = None

    def tokenized(self, rows: Dataset, task: Task, windows: Windows | None = None) -> Self:
        """Return the selection with its rows tokenised, shortest first."""
        metric, ordered = task.metric(self.metric), shortest_first(rows)
        documents = column(ordered, "document" if windows else "row")
        made = replace(self, rows=ordered, windows=windows, documents=documents)
        if not metric.ranks:
            return made
        queries = task.clusters([row.example for row in self.rows], metric)
        return replace(made, queries=cast(np.ndarray, queries)[documents])

    def score(self, value: float | None, task: Task) -> dict[str, Any]:
        return {"name": task.metric(self.metric).name, "value": value, "split": self.split, "rows": len(self.rows)}


@dataclass(frozen=True)
class TrainingData:
    """All training rows, without those of the pool that select, and the rows that select the checkpoint.

    Args:
        pool: reads the rows that have no gold label, from the first one at each call.
        planned_rows: how many rows the steps are for; 0 for as many as there are.
        texts: rows by whose lengths ``max_length`` is chosen; by default all rows.
    """

    pool: Callable[[], Iterable[TrainingRow]] | None
    gold: Gold = Gold()
    selection: Selection | None = None
    planned_rows: int = 0
    texts: Iterable[Example] | None = None

    def rows(self, text: str) -> Iterator[TrainingRow]:
        """Yield the rows of ``all``, ``pool`` or ``gold`` text: the pool with its logits, then the gold rows."""
        pool = self.pool() if self.pool and text != "gold" else ()
        return itertools.chain(pool, self.gold.rows() if text != "pool" else ())


def with_selection(
    pool: LabelledPool | None, gold: Gold, validation: Gold, task: Task, metric: str | None, seed: int
) -> TrainingData:
    """Return the rows to train on, and those to select by: of validation, of the pool or of the gold rows.

    Args:
        pool: text with the teacher's logits; None for a control.
        seed: of the draw of gold rows.
    """
    if validation.examples:
        selection = Selection(list(validation.rows()), "validation", metric)
        return TrainingData(pool.labelled if pool else None, gold, selection)
    if pool:
        return TrainingData(pool.part(held=False).labelled, gold, agreement_rows(pool, task))
    labels = dict(zip(gold.examples, gold.labels, strict=True))
    kept, held = (
        Gold(part, [labels[example] for example in part])
        for part in grouped_split(gold.examples, CONTROL_HELD_OUT_SHARE, seed=seed)
    )
    return TrainingData(None, kept, Selection(list(held.rows()), "slice of train", metric))


def agreement_rows(pool: LabelledPool, task: Task) -> Selection:
    """Return held-out pool rows labelled with the teacher's predictions, to select without gold labels."""
    check_held_out(pool, pool.rows, has_others=True)
    held = list(pool.part(held=True).labelled())
    predicted = task.pseudo_labels([cast(np.ndarray, row.logits) for row in held])
    rows = [TrainingRow(row.example, label=label) for row, label in zip(held, predicted, strict=True)]
    for directory in pool.labels:
        if directory.manifest.notes.get(CHOSEN_BY) == UNCERTAINTY:
            logger.warning(
                "labels: the texts of %s were chosen because they are hard: agreement on them is lower than on others; "
                "give --validation FILE with random rows",
                directory.path,
            )
    teacher = "teacher" if all(directory.teacher_sha256 for directory in pool.labels) else "labels"
    return Selection(rows, f"held-out pool (agreement with the {teacher})", None)


def tokenized(
    path: Path,
    rows: Iterable[TrainingRow],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    task: Task,
    mixed_ids: Mixing | None = None,
    windows: Windows | None = None,
    most_windows: int = 0,
) -> Dataset:
    """Tokenise rows into an Arrow file and return it memory-mapped; what an earlier start wrote is reused.

    Columns: ``input_ids``, ``token_type_ids`` (where the tokenizer makes them), ``length``, ``row`` (its number),
    ``truncated`` (whether it was cut), ``labels``, ``teacher_logits``, and ``mixed_ids``. A task that answers words has
    ``words`` too, 1 for every token where a word starts; labels and logits are lists over these. What teaches nothing
    is left out (:meth:`compress.tasks.Task.taught`). With ``windows`` each is a row of its own, with the label and the
    logits of its document, at most so many of a document; ``document`` is the number of that.
    """
    if not is_whole(path):
        temporary = path.with_suffix(".tmp")
        tables = _tables(rows, tokenizer, max_length, task, mixed_ids, windows, most_windows)
        first = next(tables)
        with pa.ipc.new_stream(str(temporary), first.schema) as writer:
            for table in itertools.chain([first], tables):
                writer.write_table(table)
        temporary.replace(path)
        seal(path)
    return Dataset.from_file(str(path))


def _tables(
    rows: Iterable[TrainingRow],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    task: Task,
    mixed_ids: Mixing | None,
    windows: Windows | None,
    most: int,
) -> Iterator[Any]:
    ids, logits, written, documents = pa.list_(pa.int32()), pa.list_(pa.float32()), 0, 0
    for chunk in batched(rows, ENCODED_ROWS, lambda row: len(row.example.text) + len(row.example.text_pair or "")):
        examples = [row.example for row in chunk]
        tokens, of = encode_rows(tokenizer, examples, max_length, windows, most, by_word=task.by_word, counted=False)
        chunk = [chunk[number] for number in of]
        cut = [number in tokens.unread for number in range(len(chunk))]
        has_logits = chunk[0].logits is not None
        chunk, tokens, cut = task.taught(chunk, tokens, cut)
        columns: dict[str, Any] = {key: pa.array(values, ids) for key, values in tokens.items()}
        if mixed_ids:
            columns["mixed_ids"] = pa.array([mixed_ids(row.example, max_length) for row in chunk], ids)
        columns |= {
            "row": pa.array(range(written, written + len(chunk)), pa.int64()),
            "length": pa.array([len(row) for row in tokens["input_ids"]], pa.int32()),
            "truncated": pa.array(cut, pa.bool_()),
            "labels": pa.array([task.no_label if row.label is None else row.label for row in chunk]),
        }
        if has_logits and task.by_word:
            columns["teacher_logits"] = pa.array([list(cast(Any, row.logits)) for row in chunk], pa.list_(logits))
        elif has_logits:
            columns["teacher_logits"] = pa.array([row.logits for row in chunk], logits)
        if windows:
            columns["document"] = pa.array(documents + of)
            documents += len(examples)
        written += len(chunk)
        yield pa.table(columns)


def collator(padding_id: int) -> Collator:
    """Return a function that pads rows to the longest of their batch."""

    def collate(rows: list[Mapping[str, Any]]) -> dict[str, Tensor]:
        keys = [key for key in ("input_ids", "token_type_ids", "words") if key in rows[0]]
        padded = pad([{key: row[key] for key in keys} for row in rows], padding_id)
        batch = {key: torch.from_numpy(values) for key, values in padded.items()}
        goals = {key: [row[key] for row in rows] for key in ("labels", "teacher_logits") if key in rows[0]}
        if "words" in batch:  # labels and logits have one row a word
            batch["words"] = batch["words"].bool()
            goals = {key: list(itertools.chain.from_iterable(values)) for key, values in goals.items()}
        labels = goals["labels"]
        if isinstance(labels[0], list):  # of several labels; a row without gold ones does not know how many there are
            longest = max(map(len, labels))
            labels = [row if len(row) == longest else [math.nan] * longest for row in labels]
        batch["labels"] = torch.tensor(labels)  # classes int64, scores and several labels float32
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
    return cast(np.ndarray, rows.select_columns(name).with_format("numpy")[:][name])


def shortest_first(rows: Dataset) -> Dataset:
    """Return the rows, shortest first, so that batches of neighbours hold little padding."""
    return rows.select(np.argsort(column(rows, "length"), kind="stable"))


def batches_by_length(rows: Dataset, collate: Collator, size: int, device: str | torch.device) -> Iterator[Batch]:
    for chunk in batched(shortest_first(rows), size):
        yield batch_of({name: tensor.to(device) for name, tensor in collate(chunk).items()})


def batch_of(tensors: Mapping[str, Tensor], **fields: Any) -> Batch:
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
        refuse(
            (
                tokenizer.mask_token_id is None,
                "a phase masks tokens, and this tokenizer has no mask token; use a teacher whose tokenizer has one, or "
                "a student without masking",
            )
        )
        self.collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=share)
        self.special_ids = torch.tensor(sorted(tokenizer.all_special_ids))

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with masked ``input_ids`` and the original ids as ``targets`` ``[B, T]``."""
        device, ids = batch.input_ids.device, batch.input_ids.cpu()  # where transformers draws
        special = (batch.attention_mask.cpu() == 0) | torch.isin(ids, self.special_ids)
        masked, targets = self.collator.torch_mask_tokens(ids.clone(), special)
        return replace(batch, input_ids=masked.to(device), targets=targets.to(device))


class EpochSampler(Sampler[int]):
    """Batches of similar length in an order that depends on seed and epoch only.

    The order is that of ``transformers.trainer_pt_utils.LengthGroupedSampler``, which needs 200 bytes and ten
    microseconds a row. A run resumed in its third epoch reads the same batches as an uninterrupted one.

    Args:
        lengths: tokens of each row ``[N]``.
    """

    def __init__(self, batch_size: int, lengths: np.ndarray, *, seed: int) -> None:
        self.batch_size, self.lengths, self.seed, self.epoch = batch_size, np.asarray(lengths), seed, 0

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


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by the mean over the processes.

    ``DistributedDataParallel`` finds out by the outputs of a forward pass which parameters get a gradient. Here losses
    use modules of their own after it, by-layer phases read some of the layers, and module replacing leaves others out
    by chance. A parameter that has no gradient in any process has none afterwards, so that the optimiser skips it as
    it does in one process.
    """
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    present = processes.total(torch.tensor([float(parameter.grad is not None) for parameter in learning]))
    shared = list(itertools.compress(learning, present.tolist()))
    own = [torch.zeros_like(one) if one.grad is None else one.grad for one in shared]
    means = processes.total(torch.cat([gradient.flatten() for gradient in own])).div_(processes.active())
    for parameter, mean in zip(shared, means.split([one.numel() for one in shared]), strict=True):
        parameter.grad = mean.view_as(parameter)


def shares(batch: Batch, *, step: int, batch_size: int, rows: int) -> dict[str, Tensor]:
    """Return the share of this process in what the batch of all processes holds, times their number.

    The mean over processes of their losses, each times the share in what it is a mean over, is the loss of the whole
    batch. Losses are means over ``answers`` (texts, or words of a tagger), ``texts``, ``tokens`` and ``pairs`` of
    tokens without padding, ``labels`` (answers with a gold label) or ``targets`` (masked tokens).

    Args:
        step: optimiser steps before this one.
        batch_size: rows a step, of all processes.
        rows: rows an epoch.
    """
    lengths, labels, targets = batch.attention_mask.sum(dim=1), batch.labels, batch.targets
    own: dict[str, int | Tensor] = {
        "answers": len(batch.input_ids) if batch.words is None else batch.words.sum(),
        "texts": len(batch.input_ids),
        "tokens": lengths.sum(),
        "pairs": lengths.square().sum(),
        "labels": 0 if labels is None else ((labels != NO_LABEL) & ~labels.isnan()).sum(),
        "targets": 0 if targets is None else (targets != NO_TARGET).sum(),
    }
    counts = torch.stack([torch.as_tensor(n, dtype=torch.float64).to(batch.input_ids.device) for n in own.values()])
    if step % math.ceil(rows / batch_size) * batch_size + processes.rank() >= rows:  # no row of a last batch is its own
        counts.zero_()
    of_all = processes.total(counts.clone()).clamp(min=1)
    return dict(zip(own, (processes.active() * counts / of_all).float(), strict=True))
