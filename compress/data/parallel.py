"""A function over many items in processes of this machine, in order.

``multiprocessing`` would run the main module of the caller again in each process, or copy threads that cannot be
copied. These processes import the function's module alone, and end when this one does.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from compress.host import end_with_parent, memory_bytes

Item = TypeVar("Item")
Result = TypeVar("Result")
_PROCESS_BYTES = 2**28  # that one takes at most, with its libraries and items
_AHEAD = 2  # items a process that are under way or wait to be fetched


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
    with ExitStack() as ending:
        idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for _ in range(processes):
            idle.put(_started(ending))
        threads = ThreadPoolExecutor(processes)
        ending.callback(threads.shutdown, wait=False, cancel_futures=True)

        def call(item: Item) -> Result:
            worker = idle.get()
            try:
                pickle.dump((function, item), worker.stdin)  # type: ignore[arg-type]
                worker.stdin.flush()  # type: ignore[union-attr]
                result, error = pickle.load(worker.stdout)  # type: ignore[arg-type]
            except (EOFError, BrokenPipeError, pickle.UnpicklingError):
                raise MemoryError("a process was ended") from None
            finally:
                idle.put(worker)
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]

        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(threads.submit(call, item))
            if len(waiting) >= _AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _started(ending: ExitStack) -> "subprocess.Popen[bytes]":
    """Start a process, which ends with ``ending`` at the latest."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    worker = subprocess.Popen(
        [sys.executable, "-c", "from compress.data.parallel import answer_calls; answer_calls()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )

    def end() -> None:
        worker.kill()
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
            with suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]

    ending.callback(end)
    return worker


def answer_calls() -> None:
    """Answer one call after another, until there are no more."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first ends these
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    while True:
        try:
            function, item = pickle.load(questions)
        except EOFError:
            return
        answer: tuple[Any, BaseException | None]
        try:
            answer = (function(item), None)
        except Exception as error:
            answer = (None, _sendable(error))
        pickle.dump(answer, answers)
        answers.flush()


def _sendable(error: Exception) -> Exception:
    """Return an error that another process can be sent: itself, or where pickle cannot, one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
