"""Devices, precisions, and float32 products on the CPU."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal

from compress.arrays import torch
from compress.errors import refuse
from compress.host import few_kernels, has_bfloat16, has_slow_mkl
from compress.models.compute import Compute as Compute
from compress.models.compute import Precision as Precision

TRIALS = 8  # products in each precision: about a tenth of a second in all
WORTH_ROUNDING = 1.2  # how many times as fast bfloat16 must be: the rest of a step is no faster in it


def resolve_precision(precision: Precision | Literal["auto"], device: str) -> Precision:
    """Return ``float32`` or ``bfloat16``; ``auto`` is bfloat16 where the hardware multiplies it faster."""
    if precision != "auto":
        return precision
    faster = supports_bfloat16(device) and (device == "cuda" or multiplies_bfloat16_faster())
    return "bfloat16" if faster else "float32"


def supports_bfloat16(device: str) -> bool:
    """Tell whether ``cpu`` or ``cuda`` has instructions for bfloat16."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return has_bfloat16()


@cache
def multiplies_bfloat16_faster() -> bool:
    """Tell by a trial whether products of matrices on this CPU are faster in bfloat16 than in float32.

    That it has the instructions does not say so: with those of AVX-512 and no AMX tiles, a Xeon of 2023 took 1.8 times
    as long in bfloat16. One thread multiplies, and its own time counts, so that other work does not.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with few_kernels(), fast_float32():
            seconds = [(_product_s("float32"), _product_s("bfloat16")) for _ in range(TRIALS)]
    finally:
        torch.set_num_threads(threads)
    return min(bfloat16 for _, bfloat16 in seconds) * WORTH_ROUNDING < min(float32 for float32, _ in seconds)


def _product_s(dtype: str) -> float:
    """Return the processor seconds of one product, of the size that a layer has in a step of training."""
    left, right = (torch.ones(shape, dtype=getattr(torch, dtype)) for shape in ((512, 384), (384, 1536)))
    started = time.thread_time()
    left @ right
    return time.thread_time() - started


def resolve_device(device: str, *, for_onnx: bool = False) -> str:
    """Return ``cpu`` or ``cuda`` for ``--device``, and set PyTorch up for a GPU.

    On ``auto`` an ONNX model runs on the CPU, and needs no PyTorch.
    """
    refuse((device not in {"auto", "cpu", "cuda"}, f"--device {device} is not known; use auto, cpu or cuda"))
    if for_onnx or device == "cpu":
        return "cpu" if device == "auto" else device
    has_gpu = torch.cuda.is_available()
    refuse(
        (
            device == "cuda" and not has_gpu,
            "--device cuda was asked for, but this host has no usable GPU; use --device cpu",
        )
    )
    if has_gpu:
        set_up_gpu()
    return "cuda" if has_gpu else "cpu"


def set_up_gpu() -> None:
    """Let PyTorch in this process use neither TF32 nor cuDNN's attention on a GPU.

    float32 means float32: PyTorch would allow TF32 for an LSTM in cuDNN. To attention in half precision PyTorch prefers
    cuDNN on an H100, which builds a plan for each new shape of a batch: 50 to 80 ms there, where a batch takes 5 ms.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Let the block compute in ``precision``: ``float32`` as it is, or ``bfloat16``."""
    return torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else nullcontext()


@contextmanager
def fast_float32() -> Iterator[None]:
    """Let oneDNN multiply float32 matrices on the CPU within the block, where that is faster and as exact.

    PyTorch gives them to MKL, which is half as fast on processors that are not Intel's. The setting "bf16" gives them
    to oneDNN, and lets it round to bfloat16; it does so only where there are AMX tiles, which a trial tells.
    """
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
    left, right = torch.linspace(-1, 1, 64 * 96).reshape(64, 96), torch.linspace(1, 2, 96 * 64).reshape(96, 64)
    exact = left.double() @ right.double()
    return bool((left @ right - exact).abs().max() < 1e-5 * exact.abs().max())
