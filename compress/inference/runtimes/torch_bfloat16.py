"""PyTorch with weights and activations in bfloat16: half the memory traffic, and fast where the hardware multiplies it.

The range is that of float32, the precision three decimal digits. CPUs without bfloat16 instructions are slower
with it than with float32.
"""

from pathlib import Path

from compress.inference.batching import Run
from compress.inference.torch_run import TorchRun, open_torch

OPENS = "torch"
DEVICES = ("cpu", "cuda")
PRECISION = "bfloat16"
TOLERANCE = 0.1  # a logit x may be off by 0.1 (1 + |x|)


def start(directory: Path, *, threads: int, device: str) -> Run:
    return TorchRun(open_torch(directory, threads=threads, device=device, precision=PRECISION))
