"""Pruning curve of ``compress prune``: metric after each pruning step, as CSV and chart."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.benchmarking.results.formatting import in_percent, metric_title
from compress.errors import CompressError
from compress.files import faults_of, read_text
from compress.models.training_log import is_drawable
from compress.reporting.charts import svg
from compress.reporting.charts.svg import Picture

CURVE_NAME = "pruning_curve.csv"
_ADVICE = "give the pruning_curve.csv of 'compress prune', the metrics.jsonl of a training, or the directory of a model"


@dataclass(frozen=True)
class CurvePoint:
    """A step of pruning: ``line`` says whether it was recovered, ``value`` is on the scale of the metric's title."""

    line: str
    removed_percent: float
    value: float


@dataclass(frozen=True)
class Curve:
    """What pruning cost a model, step by step; ``title`` says what went, in percent."""

    name: str
    metric: str
    title: str
    picture: Picture
    points: list[CurvePoint]


def curve_csv(points: Sequence[Mapping[str, Any]]) -> str:
    """Return the points of a path as CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(points[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return buffer.getvalue()


def read_curve(path: Path) -> tuple[str, str, list[dict[str, str]]]:
    """Return the name of a pruned model, the metric and the rows of its curve, from the file or its directory.

    Raises:
        CompressError: it is missing or not a pruning curve.
    """
    file = path / CURVE_NAME if path.is_dir() else path
    if not file.is_file():
        raise CompressError(
            f"there is no {file}: 'compress prune' writes it where heads or neurons go step by step before any "
            "training, and every training writes metrics.jsonl; leave --curve out"
        )
    with faults_of(file, "a pruning curve", _ADVICE):
        reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
        rows, columns = list(reader), reader.fieldnames or ()
        names = ("share_removed", "value", *(("points", "low", "high") if "low" in columns else ()))
        if missing := [name for name in names if name not in columns]:
            raise CompressError(
                f"{file} cannot be read as a pruning curve: it has no column {', '.join(missing)}; {_ADVICE}"
            )
        for row in rows:
            if not all(is_drawable(float(row[name])) for name in names):
                raise ValueError(f"{', '.join(row[name] for name in names)} are not all 0 or from 1e-100 to 1e100")
    if not rows:
        raise CompressError(f"{file} has no rows; {_ADVICE}")
    return file.resolve().parent.name, rows[0].get("metric", "metric"), rows


def draw_curve(name: str, metric: str, rows: Sequence[Mapping[str, Any]]) -> Curve:
    """Return what is shown of a curve, as :func:`read_curve` reads it or as its points were made."""
    parts = [part for part in ("heads", "neurons") if f"{part}_removed" in rows[0]]
    label = f"{' and '.join(parts).capitalize()} removed (%)"
    scale = 100 if in_percent(metric) else 1
    series = []
    for title, flag in (("by importance", False), ("after recovery", True)):
        chosen = [row for row in rows if (str(row.get("recovered")) == "True") is flag]
        if chosen:
            placed = [(100 * float(row["share_removed"]), scale * float(row["value"])) for row in chosen]
            series.append(svg.Series(title, placed, _bars(chosen, scale) if "low" in rows[0] else ()))
    split = rows[0].get("split", "")
    title = f"{name}: {metric}{' on ' + split if split else ''}"
    picture = svg.line_chart(series, title=title, x_label=label.lower(), y_label=metric_title(metric))
    shown = [CurvePoint(one.name, *point) for one in series for point in one.points]
    return Curve(name, metric_title(metric), label, picture, shown)


def _bars(rows: Sequence[Mapping[str, Any]], scale: int) -> list[tuple[float, float]]:
    """Return the 95% intervals of the differences to the whole model, around each value."""
    return [
        (
            scale * (float(row["value"]) + (float(row["low"]) - float(row["points"])) / 100),
            scale * (float(row["value"]) + (float(row["high"]) - float(row["points"])) / 100),
        )
        for row in rows
    ]
