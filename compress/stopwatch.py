"""How fast a model is after each removal: all states side by side, on the rows that judge."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compress.examples import Example
from compress.measuring.side_by_side import Speed, time_side_by_side
from compress.measuring.timing import Ratio

if TYPE_CHECKING:
    from compress.cuts import Shrinking

logger = logging.getLogger("compress")


@dataclass(frozen=True)
class Stopwatch:
    """Rows to read, runtimes, and what makes of a torch directory the one that a runtime opens."""

    rows: Sequence[Example]
    runtimes: Sequence[str]
    threads: int
    opened_by: Callable[[str, Path], Path]

    def speeds(self, state: Shrinking, batch_sizes: Sequence[int]) -> list[Speed]:
        """Return the speeds after each removal in every runtime; recovery changes no shape."""
        directories = {
            cut.removal: directory
            for cut, directory in zip(state.cuts, state.directories, strict=True)
            if cut.removal != "recovery"
        }
        return [
            speed for runtime in self.runtimes for speed in self._timed(directories, runtime, batch_sizes)
        ]

    def speedup(self, whole: Path, candidate: Path, batch_size: int) -> Ratio:
        """Return how many times as fast a candidate is, in the runtime in which a model is deployed."""
        found = self._timed({"whole": whole, "candidate": candidate}, self.runtimes[-1], (batch_size,))[-1]
        logger.info("tried: x%.2f (%.2f to %.2f)", found.speedup, found.low, found.high)
        return Ratio(found.speedup, found.low, found.high)

    def _timed(self, directories: Mapping[str, Path], runtime: str, batch_sizes: Sequence[int]) -> list[Speed]:
        places = {name: self.opened_by(runtime, path) for name, path in directories.items()}
        return time_side_by_side(places, self.rows, runtime=runtime, threads=self.threads, batch_sizes=batch_sizes)
