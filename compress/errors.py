"""``CompressError``, the exception for mistakes of the user; what the system has no more of; and interruptions."""

import _thread
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    DONE = 0
    BROKEN = 1  # a gate is broken, no student met the budget, or a figure differs
    MISTAKE = 2
    UNDECIDED = 3  # an interval contains the budget, or figures cannot be compared
    INTERRUPTED = 130
    UNREAD = 141  # nobody reads what it prints any more


# What the extra "onnx" brings, for predictions; other packages are of "train".
_OF_ONNX = frozenset({"numpy", "onnxruntime", "tokenizers"})
# Values and names of files may be as long as a file: a message shows its start and its end, which says what to do.
_LONGEST_MESSAGE, _LAST = 4000, 400
_LONGEST_NAME = 200
_NAMED = 10  # of many values
USED_UP = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EFBIG})
# Libraries repeat the system's words in exceptions of their own; torch's writer of checkpoints only says where, and
# their allocators raise no MemoryError.
_NO_MEMORY = (
    "can't allocate memory",
    "Storage size calculation overflowed",
    "out of memory",
    "std::bad_alloc",
    "Failed to allocate memory",
    "failed to map segment",
)
_WORDS = {
    **{os.strerror(number): number for number in USED_UP},
    "enforce fail at inline_container.cc": errno.ENOSPC,
    **dict.fromkeys(_NO_MEMORY, errno.ENOMEM),
}


class CompressError(Exception):
    """The user's mistake: what was wrong with its value, what is allowed, what to type next.

    The command line prints it as one sentence without a traceback and exits with code 2.
    """

    def __init__(self, message: str = "") -> None:
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[: _LONGEST_MESSAGE - _LAST]} ... {message[-_LAST:]}"
        super().__init__(message)


class Unavailable(CompressError):
    """Something optional, such as a competitor, is not available here; it is left out and named."""


class PartlyMade(CompressError):
    """Some of what was asked for could not be made; the rest is ``made``."""

    def __init__(self, message: str, made: Any) -> None:
        super().__init__(message)
        self.made = made


class MissingPackage(CompressError, ImportError):
    """A package is not installed that the light installation leaves out."""

    def __init__(self, error: ModuleNotFoundError) -> None:
        package = (error.name or str(error)).partition(".")[0]
        extra = "onnx" if package in _OF_ONNX else "train"
        super().__init__(
            f"this needs the Python package {package}, which is not installed; type pip install 'compress[{extra}]'"
        )

    def __reduce__(self) -> tuple[type[CompressError], tuple[str]]:
        return CompressError, (str(self),)  # another process gets the sentence


def refuse(*faults: tuple[object, str]) -> None:
    """Raise the sentence of the first fault that is there; each is a condition and a sentence."""
    for found, sentence in faults:
        if found:
            raise CompressError(sentence)


def did_you_mean(value: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest allowed name, or an empty string."""
    names = [name for name in allowed if max(len(name), len(value)) <= _LONGEST_NAME]  # it compares in squared time
    import difflib

    close = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def some_of(values: Sequence[object]) -> str:
    """Name the first of some values, and how many there are where that is not all."""
    shown = ", ".join(map(str, values[:_NAMED]))
    return shown if len(values) <= _NAMED else f"{shown}, ... ({len(values):,} in all)"


def first_line(error: BaseException) -> str:
    """Return the first line of what an exception of a library says that says something, or its kind."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def system_fault(error: BaseException | None) -> int | None:
    """Return the number of what the system has no more of, also where a library raised an exception of its own."""
    while error is not None:
        if isinstance(error, MemoryError):
            return errno.ENOMEM
        if isinstance(error, OSError) and error.errno in USED_UP:
            return error.errno
        if found := next((number for words, number in _WORDS.items() if words in str(error)), None):
            return found
        error = error.__cause__ or error.__context__
    return None


interruptions: list[int] = []  # the signals that this command got


def interrupt_on_signals() -> None:
    """Let SIGTERM, which CI sends a job that it cancels, and SIGINT, unless it is ignored, interrupt the command."""
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = raise_again


def interrupt(number: int, frame: Any) -> None:
    """Raise KeyboardInterrupt and remember it: where it hits a library, it may vanish or become another error."""
    interruptions.append(number)
    raise KeyboardInterrupt


def raise_again(lost: Any) -> None:
    """Interrupt a moment later, where an interruption came while an object was deleted and Python dropped it."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.1, _thread.interrupt_main, [signal.SIGTERM]).start()  # SIGINT may be ignored
    else:
        sys.__unraisablehook__(lost)
