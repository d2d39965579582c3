"""Energy readings of hardware counters: RAPL for CPUs, NVML for NVIDIA GPUs; none where there is no counter.

RAPL counts all cores of a package and whatever else runs on them, but neither memory modules nor the mains adapter;
NVML counts the whole GPU. A reading is therefore that of the machine while the model ran, not of the model alone.

Source: Linux, Documentation/power/powercap/powercap.rst; NVML reference, nvmlDeviceGetTotalEnergyConsumption.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

POWERCAP = Path("/sys/class/powercap")


@dataclass
class _Counter:
    """A counter that only rises, in joules; one that has a ``range_joules`` starts again at 0 when it reaches it."""

    read: Callable[[], float]
    range_joules: float | None
    last: float
    total: float = 0.0

    def joules(self) -> float:
        now = self.read()
        step = now - self.last
        if step < 0 and self.range_joules is not None:
            step += self.range_joules
        self.last = now
        self.total += step
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
    """Return a number of microjoules that a file holds, in joules."""
    return int(file.read_text(encoding="ascii")) / 1e6


def _card() -> list[_Counter]:
    """Open the first GPU that CUDA sees, if ``nvidia-ml-py`` is installed and the GPU counts energy (since Volta)."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return []

    def read() -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # it counts millijoules

    try:
        nvml.nvmlInit()
        handle = _handle(nvml)
        return [] if handle is None else [_Counter(read, None, last=read())]
    except nvml.NVMLError:
        return []


def _handle(nvml: Any) -> Any:
    """Find the GPU that CUDA calls 0; NVML numbers them by bus, CUDA by speed and environment."""
    if nvml.nvmlDeviceGetCount() == 1:
        return nvml.nvmlDeviceGetHandleByIndex(0)
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
