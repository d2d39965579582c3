"""Hardware counters of this process: memory, energy, and the peak arithmetic rate of the device.

Energy is that of RAPL for CPUs and of NVML for NVIDIA GPUs. RAPL counts all cores of a package and whatever else runs
on them, but neither memory modules nor the mains adapter; NVML counts the whole GPU.

Source: Linux, Documentation/power/powercap/powercap.rst; NVML reference, nvmlDeviceGetTotalEnergyConsumption.
"""

import importlib
import math
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

POWERCAP = Path("/sys/class/powercap")
# Sizes of matrices: large enough to fill the device, small enough for a few seconds in all.
PEAK_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
PEAK_SECONDS = 0.5


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


@dataclass
class _Counter:
    """A counter in joules that only rises, and starts again at 0 when it reaches its range."""

    read: Callable[[], float]
    range_joules: float
    last: float
    total: float = 0.0

    def joules(self) -> float:
        now = self.read()
        self.total += (now - self.last) % self.range_joules
        self.last = now
        return self.total


@dataclass
class EnergyMeter:
    """The energy that a device used since the meter was opened. Make one with :meth:`open`.

    ``resolution_s`` is how often its counter is renewed: what takes hardly longer than that cannot be told apart.
    """

    source: str
    resolution_s: float
    _counters: list[_Counter] = field(default_factory=list, repr=False)

    @classmethod
    def open(cls, device: str, *, powercap: Path = POWERCAP) -> Self | None:
        """Return a meter of ``"cpu"`` (all packages) or ``"cuda"`` (the first visible GPU), or None without a counter.

        Most systems let only root read RAPL, and virtual machines seldom have it.
        """
        counters = _packages(powercap) if device == "cpu" else _card() if device == "cuda" else []
        source, resolution_s = ("RAPL", 0.001) if device == "cpu" else ("NVML", 0.1)
        return cls(source, resolution_s, counters) if counters else None

    def joules(self) -> float:
        """Return the energy since opening, in joules.

        RAPL counters wrap after some 260 kJ: ask at least once in that time (40 minutes at 100 W).
        """
        return sum(counter.joules() for counter in self._counters)


def _packages(powercap: Path) -> list[_Counter]:
    """Open every package; domains within one (core, uncore) and the platform's (psys) would count twice."""
    try:
        zones = [z for z in sorted(powercap.glob("intel-rapl:*")) if (z / "name").read_text().startswith("package")]
        readers = {zone: partial(_joules_in, zone / "energy_uj") for zone in zones}
        return [_Counter(read, _joules_in(zone / "max_energy_range_uj"), read()) for zone, read in readers.items()]
    except (OSError, ValueError):
        return []


def _joules_in(file: Path) -> float:
    return int(file.read_text(encoding="ascii")) / 1e6


def _card() -> list[_Counter]:
    """Open the first GPU that CUDA sees, if ``nvidia-ml-py`` is installed and the GPU counts energy (since Volta)."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return []

    torch = sys.modules.get("torch")
    try:
        nvml.nvmlInit()
        # NVML numbers GPUs by bus, CUDA by speed and environment: of several the one that CUDA calls 0 is meant.
        if nvml.nvmlDeviceGetCount() == 1:
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
        elif torch and torch.cuda.is_available():
            handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        else:
            return []

        def read() -> float:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # it counts millijoules

        return [_Counter(read, math.inf, last=read())]
    except nvml.NVMLError:
        return []


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
    from torch.utils.benchmark import Timer

    tf32_before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    best = 0.0
    try:
        for size in PEAK_SIZES[device]:
            left, right = (torch.randn(size, size, device=device).to(getattr(torch, precision)) for _ in range(2))
            timer = Timer("torch.matmul(left, right)", globals={"left": left, "right": right}, num_threads=threads)
            seconds = float(min(timer.blocked_autorange(min_run_time=PEAK_SECONDS).times))
            best = max(best, 2 * size**3 / seconds / 1e12)
            if seconds > PEAK_SECONDS:
                break  # larger ones take eight times as long, and this one filled the device
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32_before
    return best
