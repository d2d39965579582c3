"""Where a stage computes, with how many threads, from which seed, in which precision, and where it is watched."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from compress.errors import CompressError
from compress.host import has_fast_bfloat16, has_slow_mkl, is_installed

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
        if not is_installed(self.report_to):
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


@contextmanager
def fast_float32() -> Iterator[None]:
    """Let oneDNN multiply float32 matrices on the CPU within the block, where that is faster and as exact.

    PyTorch gives them to MKL, which is half as fast on processors that are not Intel's. The setting "bf16" gives them
    to oneDNN, and lets it round to bfloat16; it does so only where there are AMX tiles, which a trial tells.
    """
    import torch

    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined, unused-ignore]
    before = products.fp32_precision
    try:
        if has_slow_mkl():
            products.fp32_precision = "bf16"
            if not _is_exact():
                products.fp32_precision = before
        yield
    finally:
        products.fp32_precision = before


def _is_exact() -> bool:
    """Tell whether products of float32 matrices have float32's digits: bfloat16 has errors of 1e-3."""
    import torch

    left, right = torch.linspace(-1, 1, 64 * 96).reshape(64, 96), torch.linspace(1, 2, 96 * 64).reshape(96, 64)
    exact = left.double() @ right.double()
    return bool((left @ right - exact).abs().max() < 1e-5 * exact.abs().max())
