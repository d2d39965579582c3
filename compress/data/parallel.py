"""A function over many items in processes of this machine, in order.

``multiprocessing`` would run the main module of the caller again in each process, or copy threads that cannot be
copied. Joblib's processes import the function's module alone; they end when this process does.
"""

import functools
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from compress.host import end_with_parent, memory_bytes

Item = TypeVar("Item")
Result = TypeVar("Result")
_PROCESS_BYTES = 2**28  # that one takes at most, with its libraries and items
_IDLE_S = 5


def in_processes(function: Callable[[Item], Result], items: Sequence[Item], *, processes: int) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in order, computed in so many processes, or as many as memory holds.

    Args:
        function: of a module, or a ``partial`` of one. Its arguments and results are pickled.

    Raises:
        MemoryError: a process was ended, which the system does when memory runs out.
    """
    processes = min(processes, len(items), memory_bytes() // _PROCESS_BYTES)
    if processes <= 1:
        yield from map(function, items)
        return
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    run = Parallel(processes, "loky", return_as="generator", batch_size=1, max_nbytes=None, idle_worker_timeout=_IDLE_S)
    results = run(delayed(_call)(function, item) for item in items)
    try:
        for result in results:  # not "yield from", which would close them outside of what follows
            yield result
    except TerminatedWorkerError:
        raise MemoryError("a process was ended") from None
    finally:
        with warnings.catch_warnings(action="ignore"):  # of results that nobody took
            results.close()


def _call(function: Callable[[Any], Result], item: Any) -> Result:
    _prepare()
    try:
        return function(item)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # one that says the same can be sent
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise


@functools.cache
def _prepare() -> None:
    """Let this process end with the one that started it; Ctrl-C reaches both, and the first ends this one."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
