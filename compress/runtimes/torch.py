"""PyTorch, float32, scaled-dot-product attention: what a user of transformers runs today.

With ``precision = "bfloat16"`` matrix products are in bfloat16: several times faster where the hardware multiplies it,
and logits differ in the third digit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compress.artifact import ModelDir
from compress.errors import CompressError
from compress.modeling import input_names

OPENS = "torch"
DEVICES = ("cpu", "cuda")


def start(
    directory: Path, *, threads: int, device: str, precision: str = "float32"
) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Return a function from int64 arrays ``[B, T]`` (``input_ids``, ``attention_mask``, ...) to logits ``[B, C]``.

    Args:
        directory: a torch model directory.
        threads: processor threads for one batch; this is a setting of the whole process in PyTorch.
        device: ``"cpu"`` or ``"cuda"``.
        precision: ``"float32"``, or ``"bfloat16"`` for mixed precision.
    """
    if device not in DEVICES:
        raise CompressError(f"device {device!r} is not one that torch runs on here; use --device cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise CompressError("torch finds no CUDA device on this host; use --device cpu")
    torch.set_num_threads(threads)
    model: Any = ModelDir.open(directory, verify=False).load()
    model.to(device)
    names = input_names(model)

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.from_numpy(inputs[name]).to(device) for name in names if name in inputs}
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            logits: np.ndarray = model(**tensors).logits.float().cpu().numpy()
        return logits

    return run
