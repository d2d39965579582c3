"""Progress of long stages: a bar on a terminal, a log line at the start of each phase elsewhere."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

logger = logging.getLogger("compress")

Advance = Callable[[int], None]
Progress = Callable[[str, int | None], AbstractContextManager[Advance]]


@contextmanager
def silent(title: str, total: int | None) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda steps: None


@contextmanager
def line(title: str, total: int | None) -> Iterator[Advance]:
    """Say what begins, so that whoever reads a log can tell work from a halt."""
    logger.info("%s ...", title)
    yield lambda steps: None


@contextmanager
def bar(title: str, total: int | None) -> Iterator[Advance]:
    """Draw a bar on standard error with the time left, or a counter when the total is unknown."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True, no_color="NO_COLOR" in os.environ)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console, transient=True) as drawn:
        task = drawn.add_task(title, total=total)
        yield lambda steps: drawn.advance(task, steps)


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
