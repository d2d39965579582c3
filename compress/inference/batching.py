"""Batched inference in any runtime: rows of similar length share a batch, so that little is padded.

A run function takes token arrays to logits. It may carry two things beside: ``device_ms``, the time of its last call on
the GPU alone, and ``prepare_shapes(rows, length)``, which does beforehand what the first batches of so many rows, of
up to so many tokens, would cost in addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from compress.data import Example
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.tokenization import at_words, encode, pad, word_counts
from compress.errors import CompressError
from compress.host import memory_bytes
from compress.inference.compute import set_up_gpu
from compress.inference.runner import run_by_length
from compress.models.model_dir import ModelDir
from compress.models.modeling import input_names
from compress.progress import Advance

if TYPE_CHECKING:
    from transformers import PreTrainedModel


BATCH_ROWS = 64
_WIDTH, _HEADS = 768, 12  # of BERT-base, whose activations tell how many rows fit into memory

# Token arrays [B, T] by input name -> logits [B, C], or [B, T, C] of a model that tags words.
Run = Callable[[dict[str, np.ndarray]], np.ndarray]


def logits_of(
    examples: Sequence[Example],
    run: Run,
    tokenizer: AnyTokenizer,
    *,
    max_length: int,
    batch_rows: int = BATCH_ROWS,
    task: str = "classification",
    advance: Advance = lambda rows: None,
) -> np.ndarray:
    """Return logits ``[N, C]`` float32 in the order of the examples; ``advance`` by the rows of each batch.

    For ``tagging`` N counts words, those of all sentences in order; a word without an answer has no numbers
    (:mod:`compress.data.tokenization`).
    """
    tokens = encode(tokenizer, examples, max_length, task=task)
    words = word_counts(examples) if task == "tagging" else None

    def run_rows(rows: list[int]) -> np.ndarray:
        most = rows_in_memory(max(len(tokens["input_ids"][row]) for row in rows))
        if len(rows) > most:
            return np.concatenate([run_rows(rows[start : start + most]) for start in range(0, len(rows), most)])
        read = [{key: values[row] for key, values in tokens.items()} for row in rows]
        arrays = pad(read, tokenizer.pad_token_id or 0)
        logits = run(arrays)
        advance(len(rows))
        return logits if words is None else at_words(logits, arrays["words"], [words[row] for row in rows])

    return run_by_length([len(ids) for ids in tokens["input_ids"]], run_rows, batch_rows, words)


def rows_in_memory(length: int) -> int:
    """Return how many rows of so many tokens half of the memory of this machine or container holds, at least one."""
    row_bytes = 4 * length * (_HEADS * length + 12 * _WIDTH)  # scores of attention, and inner and hidden states
    return max(1, memory_bytes() // 2 // max(1, row_bytes))


class TorchRun:
    """A torch model as a run function, on the device where it lies.

    ``device_ms`` is the time of the last forward pass on a GPU, by CUDA events and without transfers; None on a
    CPU. ``forward`` is what is called instead of the model, such as a compiled form of it.
    """

    device_ms: float | None = None

    def __init__(self, model: PreTrainedModel, forward: Callable[..., Any] | None = None) -> None:
        self.model = model
        self.names = input_names(model)
        self._forward = model if forward is None else forward

    def __call__(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        import torch

        device = self.model.device
        inputs = {name: torch.from_numpy(arrays[name]).to(device) for name in self.names if name in arrays}
        timer = DeviceTimer(device.type)
        with torch.inference_mode(), timer:
            logits = self._forward(**inputs).logits
        answer: np.ndarray = logits.float().cpu().numpy()
        self.device_ms = timer.milliseconds()
        return answer


class DeviceTimer:
    """Times what is enqueued on a CUDA GPU within its ``with`` block; on a CPU it does nothing."""

    def __init__(self, device: str) -> None:
        import torch

        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device == "cuda" else []

    def __enter__(self) -> None:
        if self._events:
            self._events[0].record()

    def __exit__(self, *_: object) -> None:
        if self._events:
            self._events[1].record()

    def milliseconds(self) -> float | None:
        """Return the time between both ends once the GPU has passed them; None on a CPU."""
        if not self._events:
            return None
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1]))


def open_torch(directory: Path, *, threads: int, device: str, precision: str = "float32") -> PreTrainedModel:
    """Load a torch model directory for inference on a device; see :func:`~compress.inference.compute.set_up_gpu`.

    Args:
        directory: a torch model directory.
        threads: CPU threads for one batch; this is a setting of the whole process in PyTorch.
        device: ``cpu`` or ``cuda``.
        precision: what weights and activations are cast to: ``float32``, ``bfloat16`` or ``float16``.

    Raises:
        CompressError: there is no such device.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise CompressError(
            "torch finds no CUDA device on this host; use --device cpu, and --runtime torch if this one needs a GPU"
        )
    torch.set_num_threads(threads)
    set_up_gpu()
    model: Any = ModelDir.open(directory, verify=False).load()
    model.to(device=device, dtype=getattr(torch, precision))
    return cast("PreTrainedModel", model)
