"""Time a model after each removal, side by side with the unpruned model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.data.examples import Example
from compress.errors import CompressError
from compress.exporting.export import export
from compress.inference.side_by_side import Speed, time_side_by_side
from compress.inference.speedup_intervals import Interval, is_noisy
from compress.models.model_dir import ModelDir
from compress.progress import logger

TRIES = 3


class TooNoisy(CompressError):
    """This host was too busy to measure on; the same command may be given again."""


@dataclass(frozen=True)
class StepTimer:
    """Rows to read, and the runtimes to time in; the last one decides about a speed-up."""

    rows: Sequence[Example]
    runtimes: Sequence[str]
    threads: int

    def speeds(self, steps: Mapping[str, Path], batch_sizes: Sequence[int]) -> list[Speed]:
        """Return the speeds of model directories by name in every runtime."""
        return [speed for runtime in self.runtimes for speed in self._timed(steps, runtime, batch_sizes)]

    def speedup(self, whole: Path, candidate: Path, batch_size: int) -> Interval:
        """Return how many times as fast a candidate is in the last runtime.

        Raises:
            TooNoisy: the ratio was too noisy in every try.
        """
        for _ in range(TRIES):
            found = self._timed({"whole": whole, "candidate": candidate}, self.runtimes[-1], (batch_size,))[-1]
            ratio = Interval(found.speedup, found.low, found.high)
            if not is_noisy(ratio):
                return ratio
            logger.info("too noisy to count: x%.2f (%.2f to %.2f)", ratio.value, ratio.low, ratio.high)
        raise TooNoisy(
            f"this host is too busy to tell how fast a model is: x{ratio.value:.2f}, but from {ratio.low:.2f} to "
            f"{ratio.high:.2f}, in the last of {TRIES} tries; give the same command again when less runs beside it, or "
            "say with --heads and --ffn how much to remove"
        )

    def _timed(self, directories: Mapping[str, Path], runtime: str, batch_sizes: Sequence[int]) -> list[Speed]:
        places = {name: directory_for(runtime, path) for name, path in directories.items()}
        return time_side_by_side(places, self.rows, runtime=runtime, threads=self.threads, batch_sizes=batch_sizes)


def directory_for(runtime: str, directory: Path) -> Path:
    """Return the directory that a runtime opens: for ONNX the export of a torch directory."""
    if runtime == "torch":
        return directory
    target = directory.with_name(f"{directory.name}-onnx")
    if not target.is_dir():
        export(ModelDir.open(directory, verify=False), target)
    return target
