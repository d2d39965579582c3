"""Available CPU cores, the least busy first, and pinning to them."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

WATCHED_SECONDS = 0.3


def available_cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def quietest_first(cores: Sequence[int]) -> list[int]:
    """Order cores by how busy they are now, so that workers are not pinned beside somebody else's work."""
    before = _busy_ticks()
    time.sleep(WATCHED_SECONDS)
    after = _busy_ticks()
    # Of equals the last: the first cores serve the interrupts of the machine.
    return sorted(cores, key=lambda core: (after.get(core, 0) - before.get(core, 0), -core))


def busy_seconds(cores: Sequence[int]) -> float:
    """Return how long these cores have worked since the machine started, added up; 0 where the system does not tell."""
    ticks = _busy_ticks()
    return sum(ticks.get(core, 0) for core in cores) / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def pin(cores: Sequence[int]) -> None:
    """Keep this process on these cores, where the system can; without any it stays free."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _busy_ticks() -> dict[int, int]:
    """Return what Linux counts of the time that each core was not idle; nothing elsewhere."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return {}
    # user, nice, system, idle, iowait, irq, softirq, steal
    return {
        int(line[0][3:]): sum(map(int, line[1:4])) + sum(map(int, line[6:9]))
        for line in lines
        if line[0].startswith("cpu") and line[0] != "cpu"
    }
