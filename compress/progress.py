"""Progress of long stages: a bar on a terminal; elsewhere a log line when a phase begins, and one every minute."""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from compress.escaping import terminal_text

logger = logging.getLogger("compress")

Advance = Callable[[int], None]
Progress = Callable[[str, int | None], AbstractContextManager[Advance]]
Callback = Callable[[str, int, int | None], object]
Item = TypeVar("Item")

LINE_INTERVAL_S = 60
ESTIMATE_S = 300  # what the time left is estimated from: speed changes, and evaluations fall between steps
RECENT_LINES = ESTIMATE_S // LINE_INTERVAL_S


@contextmanager
def silent(title: str, total: int | None) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda steps: None


def calling(callback: Callback) -> Progress:
    """Call ``callback(title, done, total)`` when a phase begins and after each of its steps; ``total`` may be None."""

    @contextmanager
    def phase(title: str, total: int | None) -> Iterator[Advance]:
        done = 0

        def advance(steps: int) -> None:
            nonlocal done
            done += steps
            callback(title, done, total)

        advance(0)
        yield advance

    return phase


@dataclass
class ProgressLine:
    """How far a phase is: steps done of ``total`` (None: unknown), and since when by ``clock``, in seconds."""

    title: str
    total: int | None
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    begun: float = field(init=False)
    said: deque[tuple[float, int]] = field(init=False)  # when something was said last, and what was done then

    def __post_init__(self) -> None:
        self.begun = self.clock()
        self.said = deque([(self.begun, 0)], RECENT_LINES)

    def advance(self, steps: int) -> None:
        self.done += steps

    def __str__(self) -> str:
        """Say how much is done and how long the rest will take, if it goes on as it went since some lines ago."""
        elapsed, done = self.clock() - self.begun, f"{self.title}: {self.done:,}"
        if self.total is None and self.done:
            per_second = self.done / elapsed
            return f"{done} done, " + (
                f"{per_second:,.0f} a second" if per_second >= 10 else f"{60 * per_second:,.0f} a minute"
            )
        if self.total is None or not self.done:
            return f"{self.title}: {duration(elapsed)} so far"
        (since, before), now = self.said[0], self.begun + elapsed
        if before == self.done:  # nothing since then, as in a long evaluation
            since, before = self.begun, 0
        self.said.append((now, self.done))
        left = (now - since) / (self.done - before) * max(0, self.total - self.done)
        return f"{done} of {self.total:,} ({min(1, self.done / self.total):.0%}), about {duration(left)} left"


def duration(seconds: float) -> str:
    """Return a duration to read: 40 s, 4 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def line(title: str, total: int | None) -> Iterator[Advance]:
    """Say what begins, and every minute how far it is, so that whoever reads a log can tell work from a halt."""
    logger.info("%s ...", title)
    said, ended = ProgressLine(title, total), threading.Event()

    def report() -> None:
        while not ended.wait(LINE_INTERVAL_S):
            logger.info("%s", str(said))

    # A thread, because a single step may take minutes too.
    threading.Thread(target=report, daemon=True).start()
    try:
        yield said.advance
    finally:
        ended.set()


def each(items: Iterable[Item], advance: Advance) -> Iterator[Item]:
    """Give items, and advance by one after each."""
    for item in items:
        yield item
        advance(1)


@contextmanager
def bar(title: str, total: int | None) -> Iterator[Advance]:
    """Draw a bar on standard error with the time left, or a counter when the total is unknown."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True, no_color="NO_COLOR" in os.environ)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console, transient=True, speed_estimate_period=ESTIMATE_S) as drawn:
        task = drawn.add_task(terminal_text(title), total=total)
        streaming = [handler for handler in logger.handlers if isinstance(handler, logging.StreamHandler)]
        handlers = [handler for handler in streaming if handler.stream is console.file]
        for handler in handlers:
            handler.setStream(sys.stderr)  # rich has replaced it, to print messages above its bar
        try:
            yield lambda steps: drawn.advance(task, steps)
        finally:
            for handler in handlers:
                handler.setStream(console.file)


def for_terminal(quiet: bool = False) -> Progress:
    """Return :func:`bar` on a terminal, :func:`line` elsewhere, and :func:`silent` when nothing is to be said."""
    return silent if quiet else bar if sys.stderr.isatty() else line


def quiet_libraries() -> None:
    """Keep the libraries' own bars and notices off the screen; errors still show."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # read when datasets is imported: 85 MB, if at all
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call,unused-ignore]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call,unused-ignore]
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()
