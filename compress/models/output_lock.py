"""Locks of outputs: two commands never write one output at once, and a killed one leaves nothing locked."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compress.errors import CompressError
from compress.models.output_safety import entry, unwritable


@contextmanager
def locked(lock: Path, output: Path) -> Iterator[int]:
    """Hold the lock file of an output, and give its descriptor; the system frees it when the process ends.

    Raises:
        CompressError: another command holds it.
    """
    busy = CompressError(f"another command is writing {output} now; wait for it or choose another -o")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise unwritable(output, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        found = entry(lock)
        if found is None or not os.path.samestat(found, os.fstat(descriptor)):  # it has just moved to its place
            raise busy
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Keep other commands from writing a file at the same time, by an empty hidden file beside it.

    Folders that are missing are made, and removed again where nothing was written in them.
    """
    lock = lock_file(file)
    missing = [folder for folder in lock.parents if not folder.exists()]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(file, error) from None
    try:
        with locked(lock, file) as descriptor:
            try:
                yield
            finally:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and not found.st_size:  # ours, and not a file of somebody's
                    lock.unlink(missing_ok=True)
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


def lock_file(file: Path) -> Path:
    """Return the lock of a file."""
    return file.with_name(f".{file.name}.lock")
