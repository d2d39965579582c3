"""CPU threads of a stage: as many as cores are free of other processes' work.

Threads of OpenMP and ONNX Runtime spin while they wait for each other, which is fast on free cores. Where another
process takes a core from one of them, the others spin until it has it back: two are then slower than one.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from compress.inference.cores import WATCHED_SECONDS, available_cores, busy_seconds, core_count
from compress.progress import logger

RENEWED_AFTER_S = 20.0
LOOKS = 3  # before cores count as busy: something short may have run
_most_threads: list[int] = []  # of the blocks that run, the outermost first


class FreeCores:
    """Counts the cores that were free of other processes' work since the last count."""

    def __init__(self) -> None:
        self.cores = available_cores()
        self.read = self._seconds()

    def _seconds(self) -> tuple[float, float]:
        """Return the time, and how long the cores have worked for others."""
        return time.monotonic(), busy_seconds(self.cores) - time.process_time()

    @property
    def watched_s(self) -> float:
        """Seconds since the last count."""
        return time.monotonic() - self.read[0]

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
        if asked or _given() or free.watched_s < RENEWED_AFTER_S:
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
