"""PyTorch, float32, scaled-dot-product attention: what a user of transformers runs today.

On a GPU float32 is without TF32. With ``precision = "bfloat16"`` matrix products are in bfloat16: faster where the
hardware multiplies it, and logits differ in the third digit.
"""

from pathlib import Path
from typing import Any

import torch

from compress.inference.batching import Run
from compress.inference.torch_run import TorchRun, open_torch

OPENS = "torch"
DEVICES = ("cpu", "cuda")
PRECISION = "float32"


def start(directory: Path, *, threads: int, device: str, precision: str = "float32") -> Run:
    model = open_torch(directory, threads=threads, device=device)

    def mixed(**inputs: torch.Tensor) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return model(**inputs)

    return TorchRun(model, mixed if precision == "bfloat16" else None)
