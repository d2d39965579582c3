"""PyTorch with CUDA graphs, float32, on a GPU: the kernels of a whole forward pass are launched as one.

For small batches most of a forward pass is the launching of its kernels, which a graph does once and for all: on an
H200 a teacher of six layers takes 0.70 ms where ``torch`` takes 3.95 ms for one text, 2.06 and 5.20 ms for 32, 10.5 and
11.0 ms for 256 (``benchmarks/results/gpu.jsonl``).

A graph has fixed shapes. There is one for each number of rows and each bucket of lengths: rows are padded to the next
multiple of 8 tokens, or to the model's longest, whichever is less. The padding is masked, so that logits stay what they
were; it costs at most seven tokens a row. A graph is recorded when its shape is first met, or beforehand by
``prepare_shapes``.

A model that looks at its data on the CPU in between, as an LSTM does to pack rows by length, has no graph.

Source: PyTorch, "CUDA semantics", section CUDA Graphs: warm-up on a side stream, static inputs, one memory pool.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compress.data.tokenization import position_limit
from compress.errors import Unavailable, first_line
from compress.inference.batching import Run
from compress.inference.torch_run import open_torch, time_on_device
from compress.models.components import input_names

OPENS = "torch"
DEVICES = ("cuda",)
PRECISION = "float32"

STEP = 8
WARM_UP_RUNS = 3

# A forward pass without arguments -> what repeats it, and the logits [B, C] that every repetition writes.
Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
# Input tensors [B, T] by name, and what was recorded for them.
Graph = tuple[dict[str, Tensor], Callable[[], None], Tensor]


def start(directory: Path, *, threads: int, device: str) -> Run:
    """Return a function from int64 arrays ``[B, T]`` (``input_ids``, ``attention_mask``, ...) to logits ``[B, C]``.

    Raises:
        Unavailable: the model cannot be recorded.
    """
    model = open_torch(directory, threads=threads, device=device)
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        raise Unavailable(
            f"{directory} packs its rows by length on the CPU, which no CUDA graph can hold; use --runtime torch"
        )
    run = GraphRun(model, cuda_recorder())
    try:
        run.prepare_shapes(1, STEP)
    except RuntimeError as error:
        raise Unavailable(
            f"{directory} cannot be recorded as a CUDA graph ({first_line(error)}); use --runtime torch"
        ) from None
    return run


def bucket(length: int, limit: int | None) -> int:
    """Return the length that rows of ``length`` tokens are padded to, in a model that reads at most ``limit``."""
    padded = -(-length // STEP) * STEP
    return padded if limit is None else max(length, min(padded, limit))


def cuda_recorder() -> Recorder:
    """Return what records forward passes as CUDA graphs.

    They share one pool of memory: no two of them run at a time, and each answer is copied before the next begins.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(forward: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_RUNS):  # libraries allocate and choose kernels at their first calls
                forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = forward()
        return graph.replay, logits

    return record


class GraphRun:
    """A torch model as a run function that pads a batch to its bucket and repeats the graph recorded for it."""

    device_ms: float | None = None

    def __init__(self, model: Any, record: Recorder) -> None:
        self._model = model
        self._record = record
        self._names = input_names(model)
        self._limit = position_limit(model.config.to_dict())
        self._padding_id = int(model.config.pad_token_id or 0)
        self._graphs: dict[tuple[int, int], Graph] = {}

    def prepare_shapes(self, rows: int, length: int) -> None:
        """Record the graphs of batches of so many rows, for every bucket up to so many tokens; longest first."""
        buckets = {bucket(tokens, self._limit) for tokens in range(1, length + 1)}
        for tokens in sorted(buckets, reverse=True):  # shorter ones then fit into the memory of longer ones
            self._graph(rows, tokens)

    def __call__(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        rows, length = arrays["input_ids"].shape
        tokens = bucket(length, self._limit)
        inputs, replay, logits = self._graph(rows, tokens)
        with torch.inference_mode():
            for name, tensor in inputs.items():
                # Masked padding on the right, and zeros for an input that was not given.
                padded = np.full((rows, tokens), self._padding_id if name == "input_ids" else 0, dtype=np.int64)
                if name in arrays:
                    padded[:, :length] = arrays[name]
                tensor.copy_(torch.from_numpy(padded))
            _, self.device_ms = time_on_device(self._model.device.type, replay)
            answer: np.ndarray = logits.float().cpu().numpy().copy()
        return answer[:, :length] if answer.ndim == 3 else answer  # of a tagger, which answers tokens

    def _graph(self, rows: int, tokens: int) -> Graph:
        key = rows, tokens
        if key not in self._graphs:
            with torch.inference_mode():
                inputs = {name: torch.zeros(key, dtype=torch.int64, device=self._model.device) for name in self._names}
                # A row without any token would give logits that are no numbers while kernels are chosen.
                inputs["attention_mask"].fill_(1)
                self._graphs[key] = inputs, *self._record(lambda: self._model(**inputs).logits)
        return self._graphs[key]
