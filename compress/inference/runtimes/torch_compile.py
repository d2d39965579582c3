"""PyTorch compiled by ``torch.compile`` (Inductor), float32: fused kernels, made for this model when it is opened.

Batch and length stay symbols, so that one kernel serves all of them; a batch of one row gets a program of its own,
because PyTorch always treats a size of 1 apart. Both are compiled before the model is used, which takes about a minute.
Compiling needs a C++ compiler on a CPU and Triton on a GPU.
"""

from pathlib import Path

import numpy as np
import torch
from torch._dynamo.exc import TorchDynamoException

from compress.data.tokenization import position_limit
from compress.errors import Unavailable, first_line
from compress.inference.batching import Run
from compress.inference.torch_run import TorchRun, open_torch

OPENS = "torch"
DEVICES = ("cpu", "cuda")
PRECISION = "float32"

# Rows and tokens that are different numbers, so that no two sizes are taken for one symbol; lengths that are multiples
# of 16 and lengths that are not, because attention kernels on a GPU differ in that; then one row, which is apart.
SHAPES = ((3, 17), (5, 32), (1, 17), (1, 32))


def start(directory: Path, *, threads: int, device: str) -> Run:
    """Return a function from int64 arrays ``[B, T]`` (``input_ids``, ``attention_mask``, ...) to logits ``[B, C]``.

    Raises:
        Unavailable: there is no compiler here, or it cannot compile the model.
    """
    model = open_torch(directory, threads=threads, device=device)
    run = TorchRun(model, torch.compile(model, dynamic=True))
    limit = position_limit(model.config.to_dict()) or max(length for _, length in SHAPES)
    try:
        for rows, length in SHAPES:
            run(_example(rows, min(length, limit), run.names))
    except TorchDynamoException as error:
        needed = "a C++ compiler (apt install g++)" if device == "cpu" else "Triton (pip install triton)"
        raise Unavailable(
            f"torch.compile fails here ({first_line(error)}); it needs {needed}, or use --runtime torch"
        ) from None
    return run


def _example(rows: int, length: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return rows of the smallest token ids, the first of them half padding."""
    arrays = {name: np.zeros((rows, length), dtype=np.int64) for name in names}
    arrays["input_ids"] += np.arange(length) % 5
    arrays["attention_mask"] += 1
    arrays["attention_mask"][0, length // 2 :] = 0
    return arrays
