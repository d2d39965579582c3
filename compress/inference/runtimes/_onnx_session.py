"""Sessions of ONNX Runtime, opened and run for the first time within bounds of time and memory.

A small graph can ask for tensors of 2**40 numbers, when it is opened (what depends on no input is computed then) or
when it runs. The first run reads eight tokens, of which no classifier makes more than a few numbers for each of its
weights. Until it is done the process gets no more memory than a multiple of the file, and both calls are stopped after
a while, between two nodes.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from compress.errors import CompressError, first_line, system_fault

FIRST_TOKENS = 8
_CPU = "CPUExecutionProvider"
LIMIT_SECONDS = 30.0
_SLOWEST_DISK_BYTES_PER_SECOND = 2e7
# Weights are in the file, in the graph that is read of it, packed for the kernels, and as float32 where they are int4.
_COPIES, _ROOM_BYTES, _THREAD_BYTES = 16, 2**29, 2**25
# The limit of memory is one of the whole process: what another thread has set is not to be put back.
_ONE_AT_A_TIME = threading.Lock()


class Unopened(CompressError):
    """ONNX Runtime cannot open a graph on these devices."""


def open_session(path: Path, threads: int, providers: Sequence[Any] = (_CPU,)) -> onnxruntime.InferenceSession:
    """Return a session of a graph that has run once.

    On a GPU memory is not bounded, because drivers take as much as they like: let the CPU open the graph first.

    Raises:
        Unopened: the graph does not open.
        CompressError: it needs more than the bounds. A graph that cannot read the eight tokens of the first run for
            another reason is left to the first texts.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4 if len(providers) == 1 else 3  # errors are exceptions too, but for missing CUDA
    # Threads wait busily inside a run, which is fast, but not after it, which would slow down whatever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Otherwise products of int8 saturate on x86 without VNNI, and a text has another answer there.
    options.add_session_config_entry("session.x64quantprecision", "1")
    run_options, stopped = onnxruntime.RunOptions(), threading.Event()
    size = sum(file.stat().st_size for file in path.parent.iterdir())  # its weights may have any name
    seconds = LIMIT_SECONDS + size / _SLOWEST_DISK_BYTES_PER_SECOND
    room_bytes = _COPIES * size + _ROOM_BYTES + threads * _THREAD_BYTES

    def stop() -> None:
        stopped.set()
        options.set_load_cancellation_flag(True)
        run_options.terminate = True

    timer = threading.Timer(seconds, stop)
    session = None
    _ONE_AT_A_TIME.acquire()
    try:
        timer.start()
        with contextlib.nullcontext() if len(providers) > 1 else _no_more_memory_than(room_bytes):
            session = onnxruntime.InferenceSession(str(path), options, providers=[*providers])
            ids = np.ones((1, FIRST_TOKENS), np.int64)
            feed = {one.name: ids * (one.name != "token_type_ids") for one in session.get_inputs()}
            session.run(None, feed, run_options)
    except Exception as error:  # its exception classes are private and share no base but this one
        needs = f"{seconds:.0f} s" if stopped.is_set() else f"{room_bytes // 10**6:,} MB" if system_fault(error) else ""
        if needs:
            raise CompressError(
                f"{path} needs more than {needs} for {FIRST_TOKENS} tokens, and no classifier of its size does: "
                "export the model again"
            ) from error
        if session is None:
            raise Unopened(f"ONNX Runtime cannot open {path}: {first_line(error)}") from error
    finally:
        timer.cancel()
        _ONE_AT_A_TIME.release()
    return session


@contextlib.contextmanager
def _no_more_memory_than(room_bytes: int) -> Iterator[None]:
    """Let this process take no more memory than that above what it has; on Linux, elsewhere without a limit."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before, highest = resource.getrlimit(resource.RLIMIT_DATA)
    data_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    limit = data_pages * os.sysconf("SC_PAGE_SIZE") + room_bytes
    found = [one for one in (before, highest) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([limit, *found]), highest))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, highest))
