"""CPU threads of a stage: they sleep while they wait for each other, and there are as many as cores are free.

Threads that spin while they wait take the time of whatever else runs on their cores, and are delayed by it themselves:
beside other work two of them can be slower than one.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from compress.inference.cores import WATCHED_SECONDS, available_cores, busy_seconds
from compress.progress import logger

WAIT_POLICY = "OMP_WAIT_POLICY"  # of OpenMP, which PyTorch uses; ONNX Runtime is told the same when a graph is opened
_CHOICES = (WAIT_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SECOND_LOOK_SECONDS = 1.0  # where cores look busy: it may have been something short
_set_here: set[str] = set()


def let_threads_sleep() -> None:
    """Let threads of this process sleep while they wait, unless the user's environment says how they wait.

    OpenMP reads this when it is loaded: call it before PyTorch is imported.
    """
    if not any(name in os.environ for name in _CHOICES):
        os.environ[WAIT_POLICY] = "passive"
        _set_here.add(WAIT_POLICY)


def threads_sleep() -> bool:
    """Tell whether threads of this process shall sleep while they wait."""
    return os.environ.get(WAIT_POLICY, "").lower() == "passive"


def users_environment() -> dict[str, str]:
    """Return the environment as it was before :func:`let_threads_sleep`."""
    return {name: value for name, value in os.environ.items() if name not in _set_here}


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS``, or as many threads as cores are free of other processes' work now; at least one."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if given.isdigit() and int(given):
        return int(given)
    cores, free = available_cores(), 0
    for seconds in (WATCHED_SECONDS, SECOND_LOOK_SECONDS):
        begun, before = time.monotonic(), busy_seconds(cores) - time.process_time()
        time.sleep(seconds)
        others = (busy_seconds(cores) - time.process_time() - before) / (time.monotonic() - begun)
        free = max(free, 1, min(len(cores), round(len(cores) - others)))
        if free == len(cores):
            return free
    logger.info("other work keeps cores busy: %d of %d threads (--threads chooses)", free, len(cores))
    return free


@contextmanager
def using_threads(asked: int) -> Iterator[None]:
    """Let PyTorch compute with so many threads within the block; 0 is :func:`default_threads`, or fewer if it has."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(asked or min(before, default_threads()))
    try:
        yield
    finally:
        torch.set_num_threads(before)
