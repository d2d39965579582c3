"""CPU threads of a stage: as many as cores are free of other processes' work.

Threads of OpenMP and ONNX Runtime spin while they wait for each other, which is fast on free cores. Where another
process takes a core from one of them, the others spin until it has it back: two are then slower than one.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compress.inference.cores import WATCHED_SECONDS, available_cores, busy_seconds
from compress.progress import logger

RENEWED_AFTER_S = 20.0


class FreeCores:
    """Counts the cores that were free of other processes' work since the last count."""

    def __init__(self) -> None:
        self.cores = available_cores()
        self.read = self._seconds()

    def _seconds(self) -> tuple[float, float]:
        """Return the time, and how long the cores have worked for others."""
        return time.monotonic(), busy_seconds(self.cores) - time.process_time()

    def count(self, at_least_s: float = 0.0) -> int | None:
        """Return the number of free cores, at least one; None where the last count is no ``at_least_s`` ago."""
        (begun, before), now = self.read, self._seconds()
        if now[0] - begun < max(at_least_s, WATCHED_SECONDS):
            return None
        self.read = now
        others = (now[1] - before) / (now[0] - begun)
        return max(1, min(len(self.cores), round(len(self.cores) - others)))


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS``, or as many threads as cores are free now."""
    if given := _given():
        return given
    free = FreeCores()
    count = None
    while count is None:
        time.sleep(WATCHED_SECONDS)
        count = free.count()
    if count < len(free.cores):
        logger.info("other work keeps cores busy: %d of %d threads (--threads chooses)", count, len(free.cores))
    return count


@contextmanager
def using_threads(asked: int) -> Iterator[Callable[[], None]]:
    """Let PyTorch compute with so many threads within the block; 0 is :func:`default_threads`, or fewer if it has.

    Gives a function to be called now and then, which chooses again where the number was not asked for.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(asked or min(before, default_threads()))
    free = FreeCores()

    def choose_again() -> None:
        count = None if asked or _given() else free.count(RENEWED_AFTER_S)
        if count is not None and (chosen := min(before, count)) != torch.get_num_threads():
            logger.info("%d of %d cores are free: %d threads", count, len(free.cores), chosen)
            torch.set_num_threads(chosen)

    try:
        yield choose_again
    finally:
        torch.set_num_threads(before)


def _given() -> int:
    """Return ``OMP_NUM_THREADS``, 0 where it names no number."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(given) if given.isdigit() else 0
