"""Time a model after each removal, side by side with the unpruned model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.data.examples import Example
from compress.exporting.export import export
from compress.inference.side_by_side import Speed, time_side_by_side
from compress.inference.speedup_intervals import Interval
from compress.models.model_dir import ModelDir
from compress.models.resumption import is_whole
from compress.progress import Advance


@dataclass(frozen=True)
class StepTimer:
    """Rows to read, and the runtimes to time in; the last one decides about a speed-up."""

    rows: Sequence[Example]
    runtimes: Sequence[str]
    threads: int

    def speeds(self, steps: Mapping[str, Path], batch_sizes: Sequence[int], advance: Advance) -> list[Speed]:
        """Return the speeds of model directories by name in every runtime; advances by the runtimes."""
        found: list[Speed] = []
        for runtime in self.runtimes:
            found += self._timed(steps, runtime, batch_sizes)
            advance(1)
        return found

    def speedup(self, whole: Path, candidate: Path, batch_size: int) -> Interval:
        """Return how many times as fast a candidate is in the last runtime."""
        found = self._timed({"whole": whole, "candidate": candidate}, self.runtimes[-1], (batch_size,))[-1]
        return Interval(found.speedup, found.low, found.high)

    def _timed(self, directories: Mapping[str, Path], runtime: str, batch_sizes: Sequence[int]) -> list[Speed]:
        places = {name: directory_for(runtime, path) for name, path in directories.items()}
        return time_side_by_side(places, self.rows, runtime=runtime, threads=self.threads, batch_sizes=batch_sizes)


def directory_for(runtime: str, directory: Path) -> Path:
    """Return the directory that a runtime opens: for ONNX the export of a torch directory."""
    if runtime == "torch":
        return directory
    target = directory.with_name(f"{directory.name}-onnx")
    if not is_whole(target):
        export(ModelDir.open(directory, verify=False), target)
    return target
