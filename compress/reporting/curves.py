"""Line charts and the tables behind them: speed by setting, quality by rows, trainings, pruning step by step."""

import csv
import io
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean, mean
from typing import Any

from compress.benchmarking.results.files import Result, grouped, is_control_of, largest_batch, smallest_batch
from compress.benchmarking.results.formatting import in_percent, metric_title, milliseconds, shown, shown_rate, times
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.files import faults_of, read_text
from compress.models.training_log import TrainingLog, is_drawable, series
from compress.reporting import tables
from compress.reporting.svg import Picture, Series, line_chart
from compress.reporting.tables import EMPTY, PAGE_ONLY, Cell, ReportTable, number, setting_text

CURVE_NAME = "pruning_curve.csv"
LINES = 4  # of a sweep; more are hard to tell apart
DRAWN = 120  # points of a loss
LOGARITHMIC_FROM = 10  # the largest loss over the smallest
NAMED = 4  # phases whose names the table has room for
_ADVICE = "give the pruning_curve.csv of 'compress prune', the metrics.jsonl of a training, or the directory of a model"


@dataclass(frozen=True)
class Chart(ReportTable):
    """A table and its pictures, if it has any; ``name`` is that of the files it is also written to."""

    title: str
    pictures: Sequence[Picture] = field(default=(), metadata=PAGE_ONLY)
    caption: str = field(default="", metadata=PAGE_ONLY)
    name: str = field(default="", metadata=PAGE_ONLY)


def sweep(rows: Sequence[Result], key: str, best: Measurement | None) -> Chart | None:
    """Return the charts and the table of what was measured at several values of ``threads`` or ``length``."""
    alike = grouped(
        rows, lambda row: (row.small_batch.model, setting_text(row.small_batch), row.small_batch.model_sha256)
    )
    value = attrgetter(f"small_batch.{key}")
    swept = [sorted(own, key=value) for own in alike.values() if len(set(map(value, own))) > 1]
    if not swept:
        return None
    runtime = best.runtime if best else ""

    def rank(own: Sequence[Result]) -> tuple[bool, bool, bool, bool, float]:
        """Order by how telling it is: the teacher, the best model, the teacher in its runtime, other models."""
        head = own[0].small_batch
        same = best is not None and (head.model_sha256, head.runtime) == (best.model_sha256, runtime)
        in_runtime = head.kind == "teacher" and head.runtime == runtime
        return (not head.is_reference, not same, not in_runtime, head.kind != "model", -head.speedup)

    swept.sort(key=rank)
    smallest, largest = smallest_batch(rows), largest_batch(rows)
    shown = (
        (f"p50, batch {smallest}", smallest, "latency_p50_ms", milliseconds),
        (f"p95, batch {smallest}", smallest, "latency_p95_ms", milliseconds),
        # A speed-up is over the teacher at the same setting.
        (f"Speed-up at the same {key}, batch {smallest}", smallest, "speedup", times),
        (f"Rows/s, batch {largest}", largest, "throughput_rows_per_second", shown_rate),
    )
    cells = [
        [
            tables.name(row.small_batch),
            number(value(row), str),
            *(tables.speed(line, what, form) if (line := row.at(size)) else EMPTY for _, size, what, form in shown),
        ]
        for own in swept
        for row in own
    ]
    title, heading, x_label = {
        "threads": ("Threads", "Threads", "threads"),
        "length": ("Length of rows", "Tokens", "tokens in every row"),
    }[key]
    drawn = [(f"Latency by {key}, batch {smallest}", "ms", smallest, "latency_p50_ms")]
    if key == "threads":
        drawn.insert(0, (f"Rows per second by threads, batch {largest}", "rows/s", largest, shown[-1][2]))
    pictures = []
    for name, unit, size, what in drawn:
        lines = []
        for own in swept[:LINES]:
            points = [(float(value(row)), float(getattr(line, what))) for row in own if (line := row.at(size))]
            padded = ", padded" if own[0].small_batch.padding == "max_length" else ""
            lines += [Series(own[0].small_batch.title + padded, points)] if points else []
        if lines:
            pictures.append(line_chart(lines, title=name, x_label=x_label, y_label=unit, log="xy"))
    return Chart(["Model", heading, *(one[0] for one in shown)], cells, title, pictures)


def learning_curve(lines: Sequence[Measurement]) -> Chart | None:
    """Return how much a student keeps of its teacher by the rows that it read: a chart for each student.

    Students are of one kind if they share the recipe, whose name may end in their rows
    (:class:`compress.recipes.study.StudyStudent`); seeds are averaged. The control learns from gold rows alone, so that
    it is one level.
    """
    models = {line.model_sha256: line for line in lines if line.model_sha256 and line.kind != "competitor"}.values()
    kept = [line for line in models if line.metric_kept_percent]
    students = [line for line in kept if line.kind == "model" and line.unlabeled_rows]
    share, pictures, cells = attrgetter("metric_kept_percent"), [], []
    for name, own in grouped(students, lambda line: line.recipe.removesuffix(f"-{line.unlabeled_rows}")).items():
        own.sort(key=attrgetter("unlabeled_rows"))
        by_rows = grouped(own, attrgetter("unlabeled_rows"))
        if len(by_rows) < 2:
            continue
        points = [(float(rows), mean(map(share, same))) for rows, same in by_rows.items()]
        curve = [Series(name, points)]
        controls = [line for line in kept if is_control_of(line, own)]
        if controls:
            level = mean(map(share, controls))
            curve.append(Series("gold rows alone", [(rows, level) for rows, _ in (points[0], points[-1])]))
        title = f"Kept of the teacher: {name}"
        pictures.append(line_chart(curve, title=title, x_label="rows without labels", y_label="%", log="x"))
        cells += [
            [
                Cell(line.model, "", line.model),
                number(line.unlabeled_rows, "{:,}".format) if line.kind == "model" else EMPTY,
                number(line.training_steps, "{:,}".format),
                tables.metric(line),
                number(line.metric_kept_percent, "{:.1f}%".format),
                tables.difference(line),
            ]
            for line in [*controls, *own]
        ]
    headings = ["Model", "Rows without labels", "Steps", "Metric", "Kept", "Points to the teacher"]
    return Chart(headings, cells, "What more text is worth", pictures) if pictures else None


@dataclass(frozen=True)
class Trainings(ReportTable):
    """How models were trained: a row each, and the pictures of each model with its control."""

    pictures: list[list[Picture]] = field(metadata=PAGE_ONLY)


@dataclass(frozen=True)
class _Training:
    """Phases one after the other: ``breaks`` are the steps at which one ended."""

    log: TrainingLog
    losses: list[tuple[int, float]]
    scores: list[tuple[int, float]]
    breaks: list[int]
    steps: int

    @classmethod
    def of(cls, log: TrainingLog) -> "_Training":
        losses, scores, ends = list[tuple[int, float]](), list[tuple[int, float]](), [0]
        for _, lines in log.phases:
            losses += [(ends[-1] + step, value) for step, value in series(lines, "loss")]
            scores += [(ends[-1] + step, value) for step, value in series(lines, "validation")]
            ends.append(ends[-1] + max(line["step"] for line in lines))
        return cls(log, losses, scores, ends[1:-1], ends[-1])

    @property
    def scale(self) -> int:
        return 100 if in_percent(self.log.metric) else 1

    def validation(self) -> Series:
        """Return the scores; the dot is the checkpoint that is kept."""
        points = [(step, self.scale * value) for step, value in self.scores]
        best = points.index(max(points, key=lambda point: point[1])) if points else 0
        return Series(self.log.name, points, dots=[best], breaks=self.breaks)

    def loss(self) -> Series:
        points = list[tuple[float, float]]()
        for _, phase in groupby(self.losses, lambda point: bisect_left(self.breaks, point[0])):
            own = list(phase)
            size = math.ceil(len(own) * (len(self.breaks) + 1) / DRAWN)
            parts = [own[first : first + size] for first in range(0, len(own), size)]
            points += [(part[-1][0], fmean(value for _, value in part)) for part in parts]
        return Series(self.log.name, points, dots=() if len(points) > 1 else None, breaks=self.breaks)

    @property
    def cells(self) -> list[Cell]:
        log, names = self.log, [name for name, _ in self.log.phases]
        step, score = max(self.scores, key=lambda point: point[1], default=(None, None))
        where = f"{log.metric} on {log.split}" if log.metric else log.split
        return [
            Cell(log.name, "", log.name),
            number(len(names) or 1, str, small=", ".join(names) if 1 < len(names) <= NAMED else ""),
            number(self.steps, "{:,}".format),
            number(step, "{:,}".format),
            number(score, partial(shown, metric=log.metric), scale=self.scale, small=where),
            number(self.losses[-1][1] if self.losses else None, "{:.4g}".format),
        ]


def trainings_of(logs: Sequence[TrainingLog], lines: Iterable[Measurement]) -> Trainings | None:
    """Return how models were trained; result lines say which of them is the control of which."""
    if not logs:
        return None
    trainings = [_Training.of(log) for log in logs]
    by_name = {one.log.name: one for one in trainings}
    pairs = [pair for line in lines for pair in ((line.control_of, line.model), (line.model, line.control))]
    controls = {model: control for model, control in pairs if model in by_name and control in by_name}
    pictures = []
    for first in trainings:
        if first.log.name not in controls.values():
            own = [first, *(by_name[name] for name in [controls.get(first.log.name)] if name)]
            pictures.append(_training_pictures(own))
    headings = ["Model", "Phases", "Steps", "Best step", "Best score", "Last loss"]
    return Trainings(headings, [one.cells for one in trainings], list(filter(None, pictures)))


def _training_pictures(trainings: Sequence[_Training]) -> list[Picture]:
    """Return the charts of a model, first in the list, and of its control; both have the same steps."""
    first, found = trainings[0].log, []
    draw = partial(line_chart, x_label="steps", x_holds=(0, max(one.steps for one in trainings)))
    if trainings[0].scores:
        same = [
            one for one in trainings if one.scores and (one.log.metric, one.log.split) == (first.metric, first.split)
        ]
        y_label = metric_title(first.metric or "score")
        found.append(draw([one.validation() for one in same], title=f"Validation of {first.name}", y_label=y_label))
    if losses := [one.loss() for one in trainings if one.losses]:
        values = [value for one in losses for _, value in one.points]
        # Losses of several phases, and of the control, differ in size.
        log = "y" if min(values) > 0 and max(values) > LOGARITHMIC_FROM * min(values) else ""
        found.append(draw(losses, title=f"Loss of {first.name}", y_label="loss", log=log))
    return found


def curve_csv(points: Sequence[Mapping[str, Any]]) -> str:
    """Return the points of a path as CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(points[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return buffer.getvalue()


def read_curve(file: Path) -> Chart:
    """Read the ``pruning_curve.csv`` of a model.

    Raises:
        CompressError: it is missing or not a pruning curve.
    """
    if not file.is_file():
        raise CompressError(
            f"there is no {file / CURVE_NAME if file.is_dir() else file}: 'compress prune' writes it where heads or "
            "neurons go step by step before any training, and every training writes metrics.jsonl; leave --curve out"
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
    return pruning_curve(file.resolve().parent.name, rows[0].get("metric", "metric"), rows)


def pruning_curve(name: str, metric: str, rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return what pruning cost a model step by step; ``rows`` are its points, or those of a CSV file of them."""
    parts = [part for part in ("heads", "neurons") if f"{part}_removed" in rows[0]]
    label = f"{' and '.join(parts).capitalize()} removed (%)"
    scale, lines, cells = 100 if in_percent(metric) else 1, [], []
    for title, recovered in (("by importance", False), ("after recovery", True)):
        chosen = [row for row in rows if (str(row.get("recovered")) == "True") is recovered]
        points = [(100 * float(row["share_removed"]), scale * float(row["value"])) for row in chosen]
        bars = [_bar(row, scale) for row in chosen] if "low" in rows[0] else ()
        lines += [Series(title, points, bars)] if points else []
        cells += [[Cell(title), number(x, "{:.1f}".format), number(y, "{:.2f}".format)] for x, y in points]
    split = rows[0].get("split", "")
    title = f"{name}: {metric}{' on ' + split if split else ''}"
    picture = line_chart(lines, title=title, x_label=label.lower(), y_label=metric_title(metric))
    return Chart(["Line", label, metric_title(metric)], cells, name, [picture])


def _bar(row: Mapping[str, Any], scale: int) -> tuple[float, float]:
    """Return the 95% interval of the difference to the whole model, around the value."""
    value, points, low, high = (float(row[name]) for name in ("value", "points", "low", "high"))
    return scale * (value + (low - points) / 100), scale * (value + (high - points) / 100)
