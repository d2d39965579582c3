"""How a model was trained, from the ``metrics.jsonl`` of its directory: read, and as text with small plots.

The charts of reports are in :mod:`compress.reporting.charts.training_curve`. How good a student is after more rows is
another curve: :mod:`compress.reporting.charts.learning_curve`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from compress.errors import CompressError
from compress.files import parse_json, read_text
from compress.models.manifest import MANIFEST_NAME, METRICS_NAME, Manifest
from compress.reporting.terminal_plot import BLOCKS, WIDTH, plot

PARTS = 10  # rows of a training without evaluations
FEWEST = 3  # points of a plot
MOST_STEPS = 2**31
_FIGURES = {"validation": "{:.4f}", "loss": "{:.4f}", "learning_rate": "{:.2e}", "rows_per_second": "{:,.0f}"}

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
        known = all(value is None or (isinstance(value, int | float) and abs(value) < 1e300) for value in figures)
        if known and 0 <= line["step"] <= MOST_STEPS:
            return line
    raise CompressError(f"{path} is damaged: copy or train the model again")


def as_text(log: TrainingLog, glyphs: str = BLOCKS) -> str:
    """Return plots and a table for each phase: a row an evaluation, with the means of the lines since the one before.

    Args:
        glyphs: of the plots, from an empty cell to a full one.
    """
    shown = []
    for name, lines in log.phases:
        plots = [
            plot(key, points, glyphs) for key in ("validation", "loss") if len(points := series(lines, key)) >= FEWEST
        ]
        beside = ["   ".join(row).rstrip() for row in zip_longest(*plots, fillvalue=" " * WIDTH)]
        shown.append("\n".join([*([name] if name else []), *beside, *([""] if beside else []), _table(lines)]))
    return "\n\n".join(shown)


def series(lines: Sequence[Line], key: str) -> list[tuple[int, float]]:
    """Return the known values of a key, each with its step."""
    return [(line["step"], line[key]) for line in lines if line.get(key) is not None]


def _table(lines: Sequence[Line]) -> str:
    terms = sorted({key for line in lines for key in line if key.startswith("loss/")})
    names = ["validation", "loss", *(terms if len(terms) > 1 else []), "learning_rate", "rows_per_second"]
    rows = [["step", *(name.replace("_", " ") for name in names)]]
    for part in _parts(lines):
        row = [f"{part[-1]['step']:,}"]
        for name in names:
            values = [value for _, value in series(part, name)]
            row.append(_FIGURES.get(name, "{:.4f}").format(fmean(values)) if values else "–")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _parts(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Yield the lines up to each evaluation, or equal parts where there is none."""
    ends = [number for number, line in enumerate(lines, 1) if "validation" in line]
    if not ends:
        ends = sorted({round(len(lines) * part / PARTS) for part in range(1, PARTS + 1)} - {0})
    for start, end in zip([0, *ends], ends, strict=False):
        yield lines[start:end]
