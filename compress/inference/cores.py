"""Available CPU cores, a container's share of them, the least busy first, and pinning to them."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from compress.host import cpu_quota

WATCHED_SECONDS = 0.3
STATISTICS = Path("/proc/stat")


def available_cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def core_count() -> int:
    """Return how many cores this process can keep busy: those that it may run on, or a container's quota of CPU time.

    Rounded down: threads beyond a quota are stopped while others wait for them.
    """
    cores = len(available_cores())
    return max(1, min(cores, int(cpu_quota() or cores)))


def quietest_first(cores: Sequence[int]) -> list[int]:
    """Order cores by how busy they are now, so that workers are not pinned beside somebody else's work."""
    before = _busy_ticks()
    time.sleep(WATCHED_SECONDS)
    after = _busy_ticks()
    # Of equals the last: the first cores serve the interrupts of the machine.
    return sorted(cores, key=lambda core: (after.get(core, 0) - before.get(core, 0), -core))


def busy_seconds(cores: Sequence[int]) -> float:
    """Return how long these cores have worked since the machine started, added up; 0 where the system does not tell.

    Work of low priority does not count, unless this process has a low priority itself: it gives way.
    """
    ticks = _busy_ticks(low_priority=hasattr(os, "nice") and os.nice(0) > 0)
    return sum(ticks.get(core, 0) for core in cores) / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def pin(cores: Sequence[int]) -> None:
    """Keep this process on these cores, where the system can; without any it stays free."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _busy_ticks(*, low_priority: bool = True) -> dict[int, int]:
    """Return what Linux counts of the time that each core was not idle; nothing elsewhere."""
    try:
        lines = [line.split() for line in STATISTICS.read_text().splitlines()]
    except OSError:
        return {}
    ticks = {}
    for name, *counts in lines:
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, counts[:8])
            ticks[int(name[3:])] = user + system + irq + softirq + steal + (nice if low_priority else 0)
    return ticks
