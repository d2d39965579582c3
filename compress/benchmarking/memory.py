"""Resident and peak memory of this process, from Linux; elsewhere the peak that the system reports."""

import resource
import sys
from pathlib import Path


def reset_peak_memory() -> int:
    """Forget the peak of importing libraries, where Linux allows it; return the memory resident now, in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except (OSError, KeyError):
        return peak_memory()


def peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes."""
    try:
        return _status("VmHWM")
    except (OSError, KeyError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def peak_gpu_memory() -> int | None:
    """Return the peak that torch allocated on the GPU, in bytes; None where this process uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated())


def _status(key: str) -> int:
    pairs = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(dict(pairs)[key].split()[0]) * 1024  # the kernel writes kB
