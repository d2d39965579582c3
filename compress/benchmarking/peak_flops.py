"""The peak arithmetic rate of this device, measured by matrix products."""

# Large enough to fill the device, small enough for a few seconds in all.
PEAK_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
PEAK_SECONDS = 0.5


def matmul_peak_tflops(device: str, precision: str, threads: int) -> float:
    """Return the rate of the fastest product of two square matrices on this device, in 10^12 operations a second.

    It is a ceiling that was reached here, not one of a data sheet: random matrices of several sizes, each repeated
    after a warm-up. In float32 TF32 is off.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        precision: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        threads: CPU threads; does not matter on a GPU.
    """
    import torch

    tf32_before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    best = 0.0
    try:
        for size in PEAK_SIZES[device]:
            seconds = _fastest_s(size, device, precision, threads)
            best = max(best, 2 * size**3 / seconds / 1e12)
            if seconds > PEAK_SECONDS:
                break  # larger ones take eight times as long, and this one filled the device
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32_before
    return best


def _fastest_s(size: int, device: str, precision: str, threads: int) -> float:
    """Return the fastest repetition of one product, in seconds."""
    import torch
    from torch.utils.benchmark import Timer

    left, right = (torch.randn(size, size, device=device).to(getattr(torch, precision)) for _ in range(2))
    timer = Timer("torch.matmul(left, right)", globals={"left": left, "right": right}, num_threads=threads)
    return float(min(timer.blocked_autorange(min_run_time=PEAK_SECONDS).times))
