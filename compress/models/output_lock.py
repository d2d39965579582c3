"""Locks of outputs: two commands never write one output at once, and a killed one leaves nothing locked."""

import fcntl
import itertools
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from compress.errors import CompressError
from compress.models.output_safety import entry, unwritable
from compress.progress import logger

WAIT_S = 0.1  # between two looks at a lock that another command holds


class Busy(CompressError):
    """Another command holds the lock of an output."""


@contextmanager
def locked(lock: Path, output: Path, *, shared: bool = False) -> Iterator[int]:
    """Hold the lock file of an output, and give its descriptor; the system frees it when the process ends.

    Args:
        shared: others that say so may hold it too.

    Raises:
        Busy: another command holds it.
    """
    busy = Busy(f"another command is writing {output} now; wait for it or choose another -o")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:  # a command that ended has just removed the folder, which it had made
        raise busy from None
    except OSError as error:
        raise unwritable(output, error) from None
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        found = entry(lock)
        if found is None or not os.path.samestat(found, os.fstat(descriptor)):  # it has just moved to its place
            raise busy
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def alone(file: Path, *, shared: bool = False) -> Iterator[None]:
    """Keep other commands from writing a file at the same time, by an empty hidden file beside it.

    Folders that are missing are made, and removed again where nothing was written in them.

    Args:
        shared: keep only those off that want to be alone; they keep this one off.

    Raises:
        Busy: another command holds it.
    """
    lock = lock_file(file)
    missing = [folder for folder in lock.parents if not folder.exists()]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(file, error) from None
    try:
        with locked(lock, file, shared=shared) as descriptor:
            try:
                yield
            finally:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and not found.st_size:  # ours, and not a file of somebody's
                    with suppress(BlockingIOError):  # others still share it
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        there = entry(lock)
                        if there and os.path.samestat(there, found):  # else the last to share it was faster
                            lock.unlink()
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def in_turn(file: Path, what: str = "", *, shared: bool = False) -> Iterator[None]:
    """As :func:`alone`, but wait for the command that holds the lock, and say once for what."""
    with ExitStack() as held:
        for attempt in itertools.count():
            try:
                held.enter_context(alone(file, shared=shared))
                break
            except Busy:
                if what and not attempt:
                    logger.info("%s: waiting for another command", what)
                time.sleep(WAIT_S)
        yield


def lock_file(file: Path) -> Path:
    """Return the lock of a file."""
    return file.with_name(f".{file.name}.lock")
