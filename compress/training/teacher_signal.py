"""Student activations and teacher outputs (cached or computed online) that losses read."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress import plugins
from compress.errors import CompressError
from compress.inference.compute import autocast
from compress.inference.padding import is_transformer, may_read_padding
from compress.models.batch import Batch, Outputs
from compress.models.modeling import input_names
from compress.models.prunable_units import attention_layers, has_heads
from compress.models.resumption import is_whole, seal
from compress.progress import Advance, logger
from compress.recipes import Choice
from compress.training.batch_parts import of_like_lengths, reads_padding, run_in_parts, tokens_of_a_part
from compress.training.tokenized_dataset import batches_by_length

LIVE = frozenset({"hidden", "first", "attention"})
FIRST_STATES_LIMIT_BYTES = 2 * 1024**3
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
            parts of like length where that is faster.
    """

    def __init__(self, model: PreTrainedModel, wants: frozenset[str], *, whole: bool = False) -> None:
        self.model = model
        self.names = input_names(model)
        self.hidden = bool(wants & {"hidden", "first"})
        self.layers = attention_layers(model) if "attention" in wants and has_heads(model) else []
        self.divides = not whole and is_transformer(model.config.to_dict())
        self.part_tokens = tokens_of_a_part(model)
        self._reads_padding = None if may_read_padding(model.config.to_dict()) else False

    def __call__(self, batch: Batch, forward: Any = None, *, records: bool = True) -> tuple[Tensor, Outputs]:
        """Return the logits of ``forward`` (by default the model itself), raw, and all of it as :class:`Outputs`.

        With ``records`` off that is the logits alone.
        """
        groups: Sequence[Sequence[Tensor]]
        if parts := self._parts(batch):
            groups = run_in_parts(
                lambda part: self._run(part, forward, records), batch.inputs(), parts, (1, 1, 2, 2, 2)
            )
        else:
            groups = self._run(batch.inputs(), forward, records)
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
                    hook = projection.register_forward_hook(partial(_record, into, layer.size))
                    hooks.callback(hook.remove)
            raw = (forward or self.model)(**inputs, **wants_hidden)
        return [[raw.logits], getattr(raw, "hidden_states", None) or (), *seen.values()]

    def _parts(self, batch: Batch) -> list[Tensor]:
        """Return the rows of each pass, where a batch takes others than one of all rows.

        Whether padding changes the model's logits is tried once.
        """
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


class CachedTeacher:
    """The cached logits of a label directory; the teacher itself is not needed."""

    def __call__(self, batch: Batch, cached_logits: Tensor | None) -> Outputs:
        if cached_logits is None:
            raise ValueError("rows without cached logits reached a loss that needs them")
        return Outputs(cached_logits)


class CachedFirstStates:
    """Cached logits, and the hidden states of the first token ``[N, L + 1, D]`` float16 in a memory-mapped file.

    Patient Knowledge Distillation computes these once (Sun et al. 2019, section 4.3): the teacher runs once instead of
    in every epoch.
    """

    def __init__(self, path: Path) -> None:
        self.states = np.load(path, mmap_mode="r")

    def __call__(self, batch: Batch, cached_logits: Tensor | None) -> Outputs:
        if batch.rows is None or cached_logits is None:
            raise ValueError("rows without numbers or cached logits reached a cached teacher")
        states = torch.from_numpy(self.states[batch.rows.cpu().numpy()].astype(np.float32))
        return Outputs(cached_logits, first=states.to(batch.input_ids.device))


class LiveTeacher:
    """Runs the teacher on every batch, once for all losses, for losses that compare more than logits.

    Logits still come from the cache where no token is masked, so that a live and a cached run train on the same ones.
    """

    def __init__(
        self, teacher: PreTrainedModel, wants: frozenset[str] = frozenset({"hidden"}), precision: str = "float32"
    ) -> None:
        self.recorder = ActivationRecorder(teacher, wants)
        teacher.train(False)
        self.precision = precision

    @torch.no_grad()
    def __call__(self, batch: Batch, cached_logits: Tensor | None) -> Outputs:
        with autocast(batch.input_ids.device.type, self.precision):
            _, outputs = self.recorder(batch)
        cached = cached_logits if batch.targets is None else None
        return replace(outputs, logits=outputs.logits.float() if cached is None else cached)


def first_states_fit(rows: int, teacher: PreTrainedModel) -> bool:
    """Tell whether the cache of :func:`write_first_states` stays small."""
    size: int = 2 * rows * (teacher.config.num_hidden_layers + 1) * teacher.config.hidden_size
    return size <= FIRST_STATES_LIMIT_BYTES


def write_first_states(
    path: Path,
    rows: Dataset,
    teacher: PreTrainedModel,
    collate: Callable[[list[Any]], dict[str, Tensor]],
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
    temporary = path.with_suffix(".tmp.npy")
    shape = len(rows), teacher.config.num_hidden_layers + 1, teacher.config.hidden_size
    states = np.lib.format.open_memmap(temporary, "w+", np.float16, shape)
    for chosen, batch in batches_by_length(rows, collate, batch_size, device):
        first = torch.stack([hidden[:, 0] for hidden in signal(batch, None).hidden], dim=1).cpu().half().numpy()
        if not np.isfinite(first).all():
            temporary.unlink(missing_ok=True)
            raise CompressError(
                "the teacher gave first states that are no numbers, or larger than float16 holds, in which they are "
                "kept; if its weights are sound, use a student without the losses patience and first-cosine"
            )
        states[chosen] = first
        advance(len(chosen))
    states.flush()
    temporary.replace(path)
    seal(path)
