"""What may be wrong with one kind of file: a file here each, found by its name in this folder.

A kind has ``FILES``, a pattern of names, and ``change(content, draw)``, which returns the content with one thing wrong
with it. It may have ``USES``, commands beside those of :mod:`tests.fuzzing.commands`, and ``write_inputs(folder)``,
which writes what these read and is called when all other inputs are there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any


@dataclass(frozen=True)
class Use:
    """A command that works, and the files and directories of which one is changed."""

    words: str
    reads: tuple[str, ...]
    weight: float = 1.0  # how often, as against the others: less where a case takes long

    @property
    def command(self) -> str:
        return self.words.split()[0]


def kinds() -> list[Any]:
    """Return the modules of this folder in the order of their names."""
    return [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]


def changes_of(path: Path) -> list[Callable[[bytes, Random], bytes]]:
    """Return the changes of all kinds that a file is of."""
    return [kind.change for kind in kinds() if fnmatch(str(path), f"*/{kind.FILES}")]
