"""How a model was trained: the ``metrics.jsonl`` of its directory, read and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from compress.errors import CompressError
from compress.files import parse_json, read_text
from compress.models.manifest import MANIFEST_NAME, METRICS_NAME, Manifest

MOST_STEPS = 2**31

Line = Mapping[str, Any]


@dataclass(frozen=True)
class TrainingLog:
    """The lines of a training, and what its validation score is: a metric (empty: not known) on a split."""

    name: str
    lines: Sequence[Line]
    metric: str = ""
    split: str = "validation"

    @property
    def phases(self) -> list[tuple[str, list[Line]]]:
        """The lines of each phase, with its name where there are several."""
        return [(name, list(lines)) for name, lines in groupby(self.lines, key=lambda line: line.get("phase", ""))]


def read_training(path: Path) -> TrainingLog:
    """Read the ``metrics.jsonl`` of a training, given itself or by its directory.

    Raises:
        CompressError: it is missing, or a line is not as a training writes it.
    """
    file = path / METRICS_NAME if path.is_dir() else path
    lines = [_checked(parse_json(text, str(file)), file) for text in read_text(file).splitlines()]
    manifest = Manifest.read(file.with_name(MANIFEST_NAME))
    notes = manifest.notes.get("recovery") or manifest.notes
    split = str(notes.get("score_name") or "validation")
    metrics = (str(metric.get("name")) for metric in manifest.metrics if metric.get("split") == split)
    return TrainingLog(file.resolve().parent.name, lines, next(metrics, ""), split)


def _checked(line: Any, path: Path) -> Line:
    if isinstance(line, dict) and isinstance(line.get("phase", ""), str) and isinstance(line.get("step"), int):
        figures = [value for key, value in line.items() if key not in {"phase", "step"}]
        known = all(value is None or (isinstance(value, int | float) and is_drawable(value)) for value in figures)
        if known and 0 <= line["step"] <= MOST_STEPS:
            return line
    raise CompressError(f"{path} is damaged: copy or train the model again")


def is_drawable(value: float) -> bool:
    """Tell whether a number has a size that trainings have and charts can compute with."""
    return value == 0 or 1e-100 < abs(value) < 1e100


def series(lines: Sequence[Line], key: str) -> list[tuple[int, float]]:
    """Return the known values of a key, each with its step."""
    return [(line["step"], line[key]) for line in lines if line.get(key) is not None]
