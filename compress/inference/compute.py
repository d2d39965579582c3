"""On what a model computes, and with what numbers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from compress.errors import CompressError
from compress.host import has_fast_bfloat16


def resolve_precision(precision: str, device: str) -> str:
    """Return ``float32`` or ``bfloat16``; ``auto`` is bfloat16 where the hardware multiplies it natively."""
    if precision != "auto":
        return precision
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if has_fast_bfloat16() else "float32"


def resolve_device(device: str) -> str:
    """Return ``cpu`` or ``cuda`` for ``--device``."""
    if device not in {"auto", "cpu", "cuda"}:
        raise CompressError(f"--device {device} is not known; use auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise CompressError("--device cuda was asked for, but this host has no usable GPU; use --device cpu")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Let the block compute in ``precision``: ``float32`` as it is, or ``bfloat16``."""
    return torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else nullcontext()
