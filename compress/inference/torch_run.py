"""Torch models as run functions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.inference.batching import TokenArrays
from compress.inference.compute import set_up_gpu
from compress.models.components import input_names
from compress.models.model_dir import Model


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

    def __call__(self, arrays: TokenArrays) -> np.ndarray:
        device = self.model.device
        inputs = {name: torch.from_numpy(arrays[name]).to(device) for name in self.names if name in arrays}
        with torch.inference_mode():
            answer, self.device_ms = time_on_device(device.type, lambda: self._forward(**inputs).logits)
        logits: np.ndarray = answer.float().cpu().numpy()
        return logits


def time_on_device(device: str, work: Callable[[], Any]) -> tuple[Any, float | None]:
    """Return what some work returns, and the milliseconds of a CUDA GPU for what it enqueues; None on a CPU."""
    if device != "cuda":
        return work(), None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = work()
    end.record()
    end.synchronize()
    return result, float(start.elapsed_time(end))


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
    refuse(
        (
            device == "cuda" and not torch.cuda.is_available(),
            "torch finds no CUDA device on this host; use --device cpu, and --runtime torch if this one needs a GPU",
        )
    )
    torch.set_num_threads(threads)
    set_up_gpu()
    model: Any = Model.open(directory, verify=False).load()
    return model.to(device=device, dtype=getattr(torch, precision))  # type: ignore[no-any-return]
