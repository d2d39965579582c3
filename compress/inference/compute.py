"""Where a stage computes, with how many threads, from which seed, in which precision, and where it is watched."""

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from compress.errors import CompressError
from compress.host import has_fast_bfloat16

TRACKERS = ("trackio", "tensorboard", "mlflow", "wandb")  # as transformers calls them; their packages too


@dataclass(frozen=True)
class Compute:
    """How every stage computes.

    Args:
        device: ``auto`` (cuda where there is a GPU), ``cpu`` or ``cuda``.
        threads: CPU threads; 0 for one a free core (:func:`compress.inference.threads.default_threads`).
        seed: of every random choice.
        report_to: one of :data:`TRACKERS`, which trainings report to beside ``metrics.jsonl``; the result is the same.

    Raises:
        CompressError: the tracker is unknown, or not installed.
    """

    device: str = "auto"
    threads: int = 0
    seed: int = 0
    report_to: str | None = None

    def __post_init__(self) -> None:
        if self.report_to is None:
            return
        if self.report_to not in TRACKERS:
            raise CompressError(f"--report-to {self.report_to} is not known; use one of {', '.join(TRACKERS)}")
        found = importlib.util.find_spec(self.report_to)
        if found is None or found.origin is None:  # a folder of that name, such as wandb makes, is no package
            raise CompressError(
                f"--report-to {self.report_to} needs the package {self.report_to}; install it with pip install "
                f"{self.report_to}"
            )


def resolve_precision(precision: str, device: str) -> str:
    """Return ``float32`` or ``bfloat16``; ``auto`` is bfloat16 where the hardware multiplies it natively."""
    if precision != "auto":
        return precision
    if device == "cuda":
        import torch

        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if has_fast_bfloat16() else "float32"


def resolve_device(device: str) -> str:
    """Return ``cpu`` or ``cuda`` for ``--device``."""
    if device not in {"auto", "cpu", "cuda"}:
        raise CompressError(f"--device {device} is not known; use auto, cpu or cuda")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise CompressError("--device cuda was asked for, but this host has no usable GPU; use --device cpu")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Let the block compute in ``precision``: ``float32`` as it is, or ``bfloat16``."""
    import torch

    return torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else nullcontext()
