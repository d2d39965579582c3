"""Student activations and teacher outputs (cached or computed online) that losses read.

Rows of a batch are run in parts: of one length where padding changes logits, of like length where it costs time or
memory. What comes out is joined again, so that losses read the same rows in the same batch. T tokens of the batch, t of
a part.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from compress import plugins
from compress.errors import CompressError
from compress.inference.batching import may_read_padding, padding_changes
from compress.inference.compute import autocast
from compress.models.batch import Batch, Outputs
from compress.models.components import attention_layers, fixed_weights, has_heads, input_names
from compress.models.manifest import is_whole, seal
from compress.models.networks import is_network
from compress.progress import Advance, logger
from compress.recipes import Choice
from compress.training.training_data import Collator, batches_by_length

TOKEN_AXES = (1, 1, 2, 2, 2)  # of logits (of a tagger), hidden states, queries, keys, values
LIVE = frozenset({"hidden", "first", "attention"})
FIRST_STATES_LIMIT_BYTES = 2 * 1024**3
# Tokens of a step that a further part costs on a CPU, for each parameter over those of linear layers. A part gives
# gradients to all parameters, a token is multiplied by the linear layers. Measured were 9 to 27 in float32 for one to
# twelve layers of width 128 to 768 and vocabularies of 30,000 to 250,000, and 40 and 72 for six layers of width 48; in
# bfloat16 a token takes half as long.
# Without parts, 'compress finetune' of six layers of 384 for 40 steps on 1,000 rows takes 1.3 times the CPU
# seconds (one turn; its steps alone 1.6, benchmarks/results/batch-parts.jsonl), the training of 'compress distill' with
# minilm-3 on 800 short rows 1.05.
PART_TOKENS = 40
NETWORK_TOKENS = 2**17  # of a batch that a network reads at once: of a cnn in training some 6 KB each
# A batch and its cached logits, where there are some -> the teacher's outputs, cached or computed online.
TeacherSignal = Callable[[Batch, Tensor | None], Outputs]


def needs_of_student(losses: Iterable[Choice]) -> frozenset[str]:
    """Return the activations of the student that the losses read: ``hidden``, ``attention``."""
    modules = (plugins.find("losses", choice.name).load() for choice in losses)
    return frozenset[str]().union(*((one.NEEDS & LIVE) | getattr(one, "STUDENT_NEEDS", frozenset()) for one in modules))


class ActivationRecorder:
    """Runs a model and records the hidden states and attention projections that are wanted.

    Hooks are on the model during a call only, so that nothing stays alive afterwards and two recorders of one model do
    not record each other's calls. A layer that is used several times (ALBERT) is recorded at each use.

    Args:
        whole: run a batch in one pass unless padding changes logits; else a transformer on the CPU runs its rows in
            parts of like length where that is faster. Long documents of a network are divided all the same.
    """

    def __init__(self, model: PreTrainedModel, wants: frozenset[str], *, whole: bool = False) -> None:
        self.model, self.names = model, input_names(model)
        self.hidden = bool(wants & {"hidden", "first"})
        self.layers = attention_layers(model) if "attention" in wants and has_heads(model) else []
        self.is_network = is_network(model.config.to_dict())
        self.divides = not whole and not self.is_network
        # How many tokens of a training step cost as much on a CPU as running a batch in one part more.
        linear = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
        self.part_tokens = PART_TOKENS * sum(weights.numel() for weights in model.parameters()) / max(linear, 1)
        self._reads_padding = None if may_read_padding(model.config.to_dict()) else False

    def __call__(self, batch: Batch, forward: Any = None, *, records: bool = True) -> tuple[Tensor, Outputs]:
        """Return the logits of ``forward`` (by default the model itself), raw, and all of it as :class:`Outputs`.

        With ``records`` off that is the logits alone.
        """
        run, parts = partial(self._run, forward=forward, records=records), self._parts(batch)
        if self.is_network and parts and torch.is_grad_enabled():  # what backwards needs of one part at a time
            run = partial(checkpoint, run, use_reentrant=False)
        groups = run_in_parts(run, batch.inputs(), parts) if parts else run(batch.inputs())
        (raw,), hidden, queries, keys, values = map(tuple, groups)
        return raw, Outputs(batch.answers(raw), hidden, queries, keys, values)

    def _run(self, given: dict[str, Tensor], forward: Any, records: bool) -> list[Sequence[Tensor]]:
        """Return the logits, the hidden states, and the queries, keys and values of a batch, as far as wanted."""
        inputs = {name: value for name, value in given.items() if name in self.names}
        wants_hidden = {"output_hidden_states": True} if self.hidden and records else {}
        seen: dict[str, list[Tensor]] = {"queries": [], "keys": [], "values": []}  # L x [B, H, T, d] each
        with ExitStack() as hooks:
            for layer in self.layers if records else ():
                for into, projection in zip(seen.values(), layer.rows, strict=True):
                    hooks.callback(projection.register_forward_hook(partial(_record, into, layer.size)).remove)
            raw = (forward or self.model)(**inputs, **wants_hidden)
        return [[raw.logits], getattr(raw, "hidden_states", None) or (), *seen.values()]

    def _parts(self, batch: Batch) -> list[Tensor]:
        """Return the rows of each pass, where a batch takes others than one of all rows.

        Whether padding changes the model's logits is tried once.
        """
        if self.is_network:
            parts = within_tokens(batch.attention_mask.sum(dim=1), NETWORK_TOKENS)
            return parts if len(parts) > 1 else []
        divides = self.divides and batch.input_ids.device.type == "cpu"
        if (self._reads_padding is False and not divides) or bool(batch.attention_mask.all()):
            return []
        if self._reads_padding is None:
            self._reads_padding = reads_padding(self.model, batch.inputs())
            if self._reads_padding:
                logger.info("padding changes the logits of this model: it reads texts of one length together")
        lengths = batch.attention_mask.sum(dim=1)
        if self._reads_padding:
            return [torch.nonzero(lengths == length).flatten() for length in lengths.unique()]
        parts = of_like_lengths(lengths, self.part_tokens) if divides else []
        return parts if len(parts) > 1 else []


def _record(into: list[Tensor], head_size: int, module: nn.Module, inputs: Any, output: Tensor) -> None:
    into.append(output.unflatten(-1, (-1, head_size)).transpose(1, 2))


def reads_padding(model: PreTrainedModel, inputs: dict[str, Tensor]) -> bool:
    """Tell by a trial in float32 whether the logits of the shortest row of a batch depend on its padding."""
    forward, names = type(model).forward, input_names(model)  # mixed precision replaces the model's own

    def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.from_numpy(values).to(model.device) for name, values in arrays.items() if name in names}
        return cast(np.ndarray, forward(model, **tensors).logits.cpu().numpy())

    with torch.no_grad(), torch.autocast(model.device.type, enabled=False), fixed_weights(model):
        return padding_changes(run, {name: tensor.cpu().numpy() for name, tensor in inputs.items()})


def of_like_lengths(lengths: Tensor, part_tokens: float) -> list[Tensor]:
    """Divide rows into the parts that cost least together, and return the numbers of the rows of each part.

    A part costs its rows times its longest row, and ``part_tokens``. Dynamic programming over the sorted rows finds the
    parts.

    Args:
        lengths: tokens of each row ``[B]``.
    """
    order = lengths.argsort(stable=True)
    ordered = lengths[order].numpy()
    costs, starts = np.zeros(len(ordered) + 1), np.zeros(len(ordered) + 1, dtype=int)
    for end in range(1, len(ordered) + 1):
        each = costs[:end] + (end - np.arange(end)) * ordered[end - 1] + part_tokens
        starts[end] = each.argmin()
        costs[end] = each[starts[end]]
    parts, end = [], len(ordered)
    while end:
        parts.append(order[starts[end] : end])
        end = int(starts[end])
    return parts


def within_tokens(lengths: Tensor, most: int) -> list[Tensor]:
    """Divide rows, shortest first, into parts of so many tokens with their padding at most, or of one row."""
    order, parts, begin = lengths.argsort(stable=True), list[Tensor](), 0
    for end, length in enumerate(lengths[order].tolist(), 1):
        if (end - begin) * length > most and end - begin > 1:
            parts.append(order[begin : end - 1])
            begin = end - 1
    return [*parts, order[begin:]]


def run_in_parts(
    run: Callable[[dict[str, Tensor]], Sequence[Iterable[Tensor]]], inputs: dict[str, Tensor], parts: Sequence[Tensor]
) -> list[list[Tensor]]:
    """Run the rows of each part together and join what comes out, padded with zeros to the length of the batch.

    Args:
        run: from inputs ``[b, t]`` to groups of tensors of these rows.
        parts: the numbers of their rows.
    """
    lengths, width = inputs["attention_mask"].sum(dim=1), inputs["attention_mask"].shape[1]
    found = [run({name: tensor[own, : int(lengths[own].max())] for name, tensor in inputs.items()}) for own in parts]
    order = torch.cat([*parts]).argsort()

    def padded(tensor: Tensor, axis: int) -> Tensor:
        after = tensor.dim() - axis - 1  # none of logits of whole rows
        return nn.functional.pad(tensor, [0, 0] * after + [0, width - tensor.shape[axis]]) if after > 0 else tensor

    return [
        [
            torch.cat([padded(tensor, axis) for tensor in tensors])[order]
            for tensors in zip(*(part[group] for part in found), strict=True)
        ]
        for group, axis in enumerate(TOKEN_AXES)
    ]


def cached_teacher(batch: Batch, cached_logits: Tensor | None) -> Outputs:
    """Return the cached logits of a label directory; the teacher itself is not needed."""
    return Outputs(cast(Tensor, cached_logits))


def cached_first_states(states: np.ndarray, batch: Batch, cached_logits: Tensor | None) -> Outputs:
    """Return the cached logits, and of the hidden states of the first token ``[N, L + 1, D]`` those of the rows.

    Patient Knowledge Distillation computes these once (Sun et al. 2019, section 4.3): the teacher runs once instead of
    in every epoch, which is 1.9 times as many steps a second (benchmarks/README.md, "Speed of distillation").
    """
    first = torch.from_numpy(states[cast(Tensor, batch.rows).cpu().numpy()].astype(np.float32))
    return replace(cached_teacher(batch, cached_logits), first=first.to(batch.input_ids.device))


class LiveTeacher:
    """Runs the teacher on every batch, once for all losses, for losses that compare more than logits.

    Logits still come from the cache where no token is masked, so that a live and a cached run train on the same ones.
    """

    def __init__(
        self, teacher: PreTrainedModel, wants: frozenset[str] = frozenset({"hidden"}), precision: str = "float32"
    ) -> None:
        self.recorder, self.precision = ActivationRecorder(teacher, wants), precision
        teacher.train(False)

    @torch.no_grad()
    def __call__(self, batch: Batch, cached_logits: Tensor | None) -> Outputs:
        with autocast(batch.input_ids.device.type, self.precision):
            _, outputs = self.recorder(batch)
        cached = cached_logits if batch.targets is None else None
        return replace(outputs, logits=outputs.logits.float() if cached is None else cached)


def write_first_states(
    path: Path,
    rows: Dataset,
    teacher: PreTrainedModel,
    collate: Collator,
    *,
    device: str,
    precision: str,
    batch_size: int = 128,
    advance: Advance = lambda rows: None,
) -> None:
    """Run the teacher over all rows, by length, and save its first hidden states; an existing file is reused."""
    if is_whole(path):
        return
    signal = LiveTeacher(teacher.to(device), frozenset({"first"}), precision)  # type: ignore[arg-type]
    temporary, config = path.with_suffix(".tmp.npy"), teacher.config
    shape = len(rows), config.num_hidden_layers + 1, config.hidden_size
    states = np.lib.format.open_memmap(temporary, "w+", np.float16, shape)
    for batch in batches_by_length(rows, collate, batch_size, device):
        first = torch.stack([hidden[:, 0] for hidden in signal(batch, None).hidden], dim=1).cpu().half().numpy()
        if not np.isfinite(first).all():
            temporary.unlink()
            raise CompressError(
                "the teacher gave first states that are no numbers, or larger than float16 holds, in which they are "
                "kept; if its weights are sound, use a student without the losses patience and first-cosine"
            )
        states[cast(Tensor, batch.rows).cpu().numpy()] = first
        advance(len(first))
    states.flush()
    temporary.replace(path)
    seal(path)
