"""Available CPU cores, how busy they are, and the threads of a stage: as many as cores are free of other work.

Threads of OpenMP and ONNX Runtime spin while they wait for each other, which is fast on free cores. Where another
process takes a core from one of them, the others spin until it has it back: two are then slower than one.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from compress.host import cpu_quota
from compress.progress import logger

WATCHED_SECONDS = 0.3
STATISTICS = Path("/proc/stat")
RENEWED_AFTER_S = 20.0
LOOKS = 3  # before cores count as busy: something short may have run
_most_threads: list[int] = []  # of the blocks that run, the outermost first


def available_cores() -> list[int]:
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


class FreeCores:
    """Counts the cores that were free of other processes' work since the last count."""

    def __init__(self) -> None:
        self.cores = available_cores()
        self.read = self._seconds()

    def _seconds(self) -> tuple[float, float]:
        """Return the time, and how long the cores have worked for others."""
        return time.monotonic(), busy_seconds(self.cores) - time.process_time()

    def count(self) -> int:
        """Return the number of cores that were free, at least one."""
        (begun, before), now = self.read, self._seconds()
        self.read = now
        others = (now[1] - before) / (now[0] - begun)
        return max(1, min(core_count(), round(len(self.cores) - others)))


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS``, or as many threads as cores are free; a count serves for 20 seconds at most."""
    if given := _given():
        return given
    count, cores = free_cores(), core_count()
    if count < cores:
        logger.info("other work keeps cores busy; threads: %d of %d (--threads chooses)", count, cores)
    return count


def free_cores() -> int:
    """Return how many cores other processes leave free, at least one."""
    return _counted(int(time.monotonic() / RENEWED_AFTER_S))


@lru_cache(maxsize=1)
def _counted(period: int) -> int:
    """Watch the cores for a moment, once in each period."""
    free, count = FreeCores(), 1
    for _ in range(LOOKS):
        time.sleep(WATCHED_SECONDS)
        count = max(count, free.count())
        if count == core_count():
            break
    return count


@contextmanager
def using_threads(asked: int) -> Iterator[Callable[[], None]]:
    """Let PyTorch compute with so many threads within the block.

    0 is :func:`default_threads`, but no more than PyTorch had before the outermost of the blocks that run. Gives a
    function to be called now and then, which chooses again where the number was not asked for.
    """
    import torch

    before = torch.get_num_threads()
    _most_threads.append(before)
    most = _most_threads[0]
    torch.set_num_threads(asked or min(most, default_threads()))
    free = FreeCores()

    def choose_again() -> None:
        if asked or _given() or time.monotonic() - free.read[0] < RENEWED_AFTER_S:
            return
        count = free.count()
        if (chosen := min(most, count)) != torch.get_num_threads():
            logger.info("%d of %d cores are free; threads: %d", count, core_count(), chosen)
            torch.set_num_threads(chosen)

    try:
        yield choose_again
    finally:
        _most_threads.pop()
        torch.set_num_threads(before)


def _given() -> int:
    """Return ``OMP_NUM_THREADS``, 0 where it names no number."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(given) if given.isdigit() else 0
