"""How fast a model is after each removal: all states side by side, on the rows that judge."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compress.data.examples import Example
from compress.errors import CompressError
from compress.inference.side_by_side import Speed, time_side_by_side
from compress.inference.timing import Ratio, is_noisy

if TYPE_CHECKING:
    from compress.pruning.pruned_state import Shrinking


logger = logging.getLogger("compress")

TRIES = 3


class TooNoisy(CompressError):
    """This host was too busy to measure on; the same command may be given again."""


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
        return [speed for runtime in self.runtimes for speed in self._timed(directories, runtime, batch_sizes)]

    def speedup(self, whole: Path, candidate: Path, batch_size: int) -> Ratio:
        """Return how many times as fast a candidate is, in the runtime in which a model is deployed.

        Raises:
            TooNoisy: measured three times, and the first digits were not known at any.
        """
        for _ in range(TRIES):
            found = self._timed({"whole": whole, "candidate": candidate}, self.runtimes[-1], (batch_size,))[-1]
            ratio = Ratio(found.speedup, found.low, found.high)
            if not is_noisy(ratio):
                return ratio
            logger.info("too noisy to count: x%.2f (%.2f to %.2f)", ratio.value, ratio.low, ratio.high)
        raise TooNoisy(
            f"this host is too busy to tell how fast a model is: x{ratio.value:.2f}, but from {ratio.low:.2f} to "
            f"{ratio.high:.2f}, in the last of {TRIES} tries; give the same command again when less runs beside it, or "
            "say with --heads and --ffn how much goes"
        )

    def _timed(self, directories: Mapping[str, Path], runtime: str, batch_sizes: Sequence[int]) -> list[Speed]:
        places = {name: self.opened_by(runtime, path) for name, path in directories.items()}
        return time_side_by_side(places, self.rows, runtime=runtime, threads=self.threads, batch_sizes=batch_sizes)
