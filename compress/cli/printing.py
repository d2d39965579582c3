"""What commands print: lines, tables and messages in which foreign text stays text, on whatever the streams are."""

import codecs
import io
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from compress.escaping import escaped, terminal_text, text_without_secrets
from compress.progress import logger

if TYPE_CHECKING:
    from rich.table import Table


def say(text: str) -> None:
    """Print lines."""
    print(terminal_text(text))


def tell(text: str) -> None:
    """Print lines about what was made, unless messages are off."""
    if logger.isEnabledFor(logging.INFO):
        say(text)


def can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def complain(text: str) -> None:
    """Print lines on standard error, if anybody can read it, without the secrets of URIs that libraries repeat."""
    with suppress(OSError):
        print(terminal_text(text_without_secrets(text)), file=sys.stderr)


def show(table: "Table", width_in_a_log: int) -> None:
    """Print a table of texts that are escaped already, unless messages are off."""
    if not logger.isEnabledFor(logging.INFO):
        return
    from rich.console import Console

    # A pipe has no width: cut columns would make a log useless.
    console = Console() if sys.stdout.isatty() else Console(width=width_in_a_log)
    with console.capture() as drawn:  # rich itself ends the program where nobody reads
        console.print(table)
    print(drawn.get(), end="")


class MessageFormatter(logging.Formatter):
    """Format a message and its traceback for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return terminal_text(super().format(record))


def set_up_messages(level: int) -> None:
    """Send the messages of this package to standard error, and keep other libraries' notices off it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MessageFormatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def open_streams() -> None:
    """Let standard output and error take any text: closed ones discard it, others escape what they cannot encode."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:  # else the next file opened would be standard output
        pass
    os.close(spare)
    codecs.register_error("shown", _shown)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="shown")


def close_streams() -> None:
    """Discard what could not be written, so that the interpreter does not try again when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _shown(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(escaped, error.object[error.start : error.end])), error.end
