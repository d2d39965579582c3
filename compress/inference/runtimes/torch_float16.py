"""PyTorch with weights and activations in float16, on a CUDA GPU: its matrix units are many times faster than float32.

The precision is four decimal digits, more than bfloat16's, but numbers end at 65,504: a model trained in bfloat16 may
exceed that. CPUs have no use for it.
"""

from pathlib import Path

from compress.inference.batching import Run
from compress.inference.torch_run import TorchRun, open_torch

OPENS = "torch"
DEVICES = ("cuda",)
PRECISION = "float16"
TOLERANCE = 0.02  # a logit x may be off by 0.02 (1 + |x|)


def start(directory: Path, *, threads: int, device: str) -> Run:
    return TorchRun(open_torch(directory, threads=threads, device=device, precision=PRECISION))
