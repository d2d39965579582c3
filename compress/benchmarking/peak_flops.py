"""How much arithmetic a model does, and how fast this device can do it at best.

Counted are matrix products, attention and convolutions, two operations for a multiplication and its addition; the rest
is small beside them. PyTorch's own counter sees every one of those as it runs, except an LSTM's, which are counted by
their formula. A model with anything else that the counter does not know has no count: None is better than too few.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

PEAK_PRECISIONS = ("float32", "bfloat16", "float16")
# Large enough to fill the device, small enough for a few seconds in all.
PEAK_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
PEAK_REPEATS = 5
PEAK_SECONDS = 0.5


def matmul_peak_tflops(device: str, precision: str, threads: int) -> float:
    """Return the fastest product of two square matrices on this device, measured, in 10^12 operations a second.

    It is a ceiling that was reached here, not one of a data sheet: random matrices of several sizes, each repeated
    after a warm-up, timed by CUDA events on a card. In float32 TF32 is off.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        precision: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        threads: processor threads; does not matter on a card.

    Raises:
        ValueError: another device or precision.
    """
    if device not in PEAK_SIZES or precision not in PEAK_PRECISIONS:
        allowed = ", ".join(PEAK_PRECISIONS)
        raise ValueError(f"there is no peak of {precision} on {device}; use {allowed} on cpu or cuda")
    import torch

    threads_before, tf32_before = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    best = 0.0
    try:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = False
        for size in PEAK_SIZES[device]:
            left, right = (torch.randn(size, size, device=device).to(getattr(torch, precision)) for _ in range(2))
            seconds = _fastest(partial(torch.matmul, left, right), device)
            best = max(best, 2 * size**3 / seconds / 1e12)
            if seconds > PEAK_SECONDS:
                break  # larger ones take eight times as long, and this one filled the device
    finally:
        torch.set_num_threads(threads_before)
        torch.backends.cuda.matmul.allow_tf32 = tf32_before
    return best


def _fastest(work: Callable[[], Any], device: str) -> float:
    """Return the fastest of several repeats after a first one, in seconds."""
    seconds = list[float]()
    time_once = _seconds_on_card if device == "cuda" else _seconds
    time_once(work)
    while len(seconds) < PEAK_REPEATS and sum(seconds) < PEAK_SECONDS:
        seconds.append(time_once(work))
    return min(seconds)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _seconds_on_card(work: Callable[[], Any]) -> float:
    """Time ten in a row by events, so that the launches hide behind the work."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / 10
