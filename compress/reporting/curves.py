"""Line charts and the tables behind them: speed by setting, quality by rows, trainings, pruning step by step."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import fmean, mean
from typing import Any

from compress.benchmarking.results.files import Result, grouped, is_control_of, largest_batch, smallest_batch
from compress.benchmarking.results.formatting import in_percent, metric_title, milliseconds, shown_rate, times
from compress.benchmarking.results.schema import TEXT_RATE, Measurement
from compress.errors import refuse
from compress.files import faults_of, read_text
from compress.models.training_log import TrainingLog, is_drawable, series
from compress.reporting.pages import EMPTY, Cell, ReportTable, integer, metric_cell, number
from compress.reporting.svg import Picture, Series, line_chart
from compress.reporting.tables import CELLS, setting_text, speed

CURVE_NAME = "pruning_curve.csv"
LINES = 4  # of a sweep; more are hard to tell apart
DRAWN = 120  # points of a loss
LOGARITHMIC_FROM = 10  # the largest loss over the smallest
NAMED = 4  # phases whose names the table has room for
_ADVICE = "give the pruning_curve.csv of 'compress prune', the metrics.jsonl of a training, or the directory of a model"


def sweep(rows: Sequence[Result], key: str, best: Measurement | None) -> ReportTable | None:
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
        return (not head.is_reference, not same, not in_runtime, head.kind != "model", -head.speedups.value)

    swept.sort(key=rank)
    smallest, largest = smallest_batch(rows), largest_batch(rows)
    columns = {
        f"p50 of the model, batch {smallest}": (smallest, "latency_p50_ms", milliseconds),
        f"p95 of the model, batch {smallest}": (smallest, "latency_p95_ms", milliseconds),
        # A speed-up is over the teacher at the same setting.
        f"Speed-up at the same {key}, batch {smallest}": (smallest, rows[0].small_batch.speedup_field, times),
        f"Rows/s, batch {largest}": (largest, TEXT_RATE, shown_rate),
    }
    cells = [
        [
            CELLS["model"](row.small_batch),
            number(value(row), str),
            *(speed(line, what, form) if (line := row.at(size)) else EMPTY for size, what, form in columns.values()),
        ]
        for own in swept
        for row in own
    ]
    latency = (f"Latency by {key}, batch {smallest}", "ms", smallest, "latency_p50_ms")
    throughput = (f"Rows per second by threads, batch {largest}", "rows/s", largest, TEXT_RATE)
    title, heading, x_label, drawn = {
        "threads": ("Threads", "Threads", "threads", (throughput, latency)),
        "length": ("Length of rows", "Tokens", "tokens in every row", (latency,)),
    }[key]
    pictures = []
    for name, unit, size, what in drawn:
        lines = []
        for own in swept[:LINES]:
            head = own[0].small_batch
            points = [(float(value(row)), float(getattr(line, what))) for row in own if (line := row.at(size))]
            lines.append(Series(head.title + ", padded" * (head.padding == "max_length"), points))
        if any(line.points for line in lines):
            pictures.append(line_chart(lines, title=name, x_label=x_label, y_label=unit, log="xy"))
    return ReportTable(title, ["Model", heading, *columns], cells, pictures=pictures)


def learning_curve(lines: Sequence[Measurement]) -> ReportTable | None:
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
        curve = [Series(name, [(float(rows), mean(map(share, same))) for rows, same in by_rows.items()])]
        controls = [line for line in kept if is_control_of(line, own)]
        if controls:
            level = mean(map(share, controls))
            curve.append(Series("gold rows alone", [(rows, level) for rows in (min(by_rows), max(by_rows))]))
        title = f"Kept of the teacher: {name}"
        pictures.append(line_chart(curve, title=title, x_label="rows without labels", y_label="%", log="x"))
        cells += [
            [
                Cell(line.model, "", line.model),
                integer(line.unlabeled_rows if line.kind == "model" else None),
                integer(line.training_steps),
                *(CELLS[key](line) for key in ("metric", "kept", "difference")),
            ]
            for line in [*controls, *own]
        ]
    headings = ["Model", "Rows without labels", "Steps", "Metric", "Kept", "Points to the teacher"]
    return ReportTable("What more text is worth", headings, cells, pictures=pictures) if pictures else None


@dataclass(frozen=True)
class _Training:
    """Phases one after the other: ``ends`` are the steps at which the first begins and each one ends."""

    log: TrainingLog

    @cached_property
    def ends(self) -> list[int]:
        return list(accumulate((max(line["step"] for line in lines) for _, lines in self.log.phases), initial=0))

    def points(self, key: str) -> list[list[tuple[float, float]]]:
        """Return the values of each phase at the steps since the first one began."""
        phases = zip(self.ends, self.log.phases, strict=False)
        return [[(start + step, value) for step, value in series(lines, key)] for start, (_, lines) in phases]

    @cached_property
    def scores(self) -> list[tuple[float, float]]:
        return [point for phase in self.points("validation") for point in phase]

    def validation(self) -> Series:
        """Return the scores; the dot is the checkpoint that is kept."""
        scale = 100 if in_percent(self.log.metric) else 1
        best = max(range(len(self.scores)), key=lambda index: self.scores[index][1])
        points = [(step, scale * value) for step, value in self.scores]
        return Series(self.log.name, points, dots=[best], breaks=self.ends[1:-1])

    def loss(self) -> Series:
        """Return the means of equally many losses, phase by phase."""
        points = list[tuple[float, float]]()
        for phase in self.points("loss"):
            size = math.ceil(len(phase) * (len(self.ends) - 1) / DRAWN) or 1
            parts = [phase[first : first + size] for first in range(0, len(phase), size)]
            points += [(part[-1][0], fmean(value for _, value in part)) for part in parts]
        return Series(self.log.name, points, dots=() if len(points) > 1 else None, breaks=self.ends[1:-1])

    @property
    def cells(self) -> list[Cell]:
        log, names = self.log, [name for name, _ in self.log.phases]
        step, score = max(self.scores, key=itemgetter(1), default=(None, None))
        losses = [value for phase in self.points("loss") for _, value in phase]
        where = f"{log.metric} on {log.split}" if log.metric else log.split
        return [
            Cell(log.name, "", log.name),
            number(len(names) or 1, str, small=", ".join(names) if 1 < len(names) <= NAMED else ""),
            integer(self.ends[-1]),
            integer(step),
            metric_cell(score, log.metric, small=where),
            number(losses[-1] if losses else None, "{:.4g}".format),
        ]


def trainings_of(
    logs: Sequence[TrainingLog], lines: Iterable[Measurement]
) -> tuple[ReportTable | None, list[list[Picture]]]:
    """Return a row for each training, and the pictures of each model with its control, which result lines name."""
    trainings = [_Training(log) for log in logs]
    by_name = {one.log.name: one for one in trainings}
    pairs = [pair for line in lines for pair in ((line.control_of, line.model), (line.model, line.control))]
    controls = {model: by_name[control] for model, control in pairs if model in by_name and control in by_name}
    models = [one for one in trainings if one.log.name not in {control.log.name for control in controls.values()}]
    drawn = [[one, *([controls[one.log.name]] if one.log.name in controls else [])] for one in models]
    headings = ["Model", "Phases", "Steps", "Best step", "Best score", "Last loss"]
    table = ReportTable("Trainings", headings, [one.cells for one in trainings]) if logs else None
    return table, list(filter(None, map(_training_pictures, drawn)))


def _training_pictures(trainings: Sequence[_Training]) -> list[Picture]:
    """Return the charts of a model, first in the list, and of its control; both have the same steps."""
    first, found = trainings[0].log, []
    draw = partial(line_chart, x_label="steps", x_holds=(0, max(one.ends[-1] for one in trainings)))
    of = attrgetter("log.metric", "log.split")
    if trainings[0].scores:
        same = [one.validation() for one in trainings if one.scores and of(one) == of(trainings[0])]
        found.append(draw(same, title=f"Validation of {first.name}", y_label=metric_title(first.metric or "score")))
    if losses := [loss for one in trainings if (loss := one.loss()).points]:
        values = [value for one in losses for _, value in one.points]
        # Losses of several phases, and of the control, differ in size.
        log = "y" if min(values) > 0 and max(values) > LOGARITHMIC_FROM * min(values) else ""
        found.append(draw(losses, title=f"Loss of {first.name}", y_label="loss", log=log))
    return found


def read_curve(file: Path) -> ReportTable:
    """Read the ``pruning_curve.csv`` of a model.

    Raises:
        CompressError: it is missing or not a pruning curve.
    """
    missing = (
        f"there is no {file / CURVE_NAME if file.is_dir() else file}: 'compress prune' writes it where heads or "
        "neurons go step by step before any training, and every training writes metrics.jsonl; leave --curve out"
    )
    refuse((not file.is_file(), missing))
    with faults_of(file, "a pruning curve", _ADVICE):
        reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
        rows, columns = list(reader), reader.fieldnames or ()
        names = ("share_removed", "value", *(("points", "low", "high") if "low" in columns else ()))
        absent = ", ".join(name for name in names if name not in columns)
        refuse((absent, f"{file} cannot be read as a pruning curve: it has no column {absent}; {_ADVICE}"))
        for row in rows:
            if not all(is_drawable(float(row[name])) for name in names):
                raise ValueError(f"{', '.join(row[name] for name in names)} are not all 0 or from 1e-100 to 1e100")
    refuse((not rows, f"{file} has no rows; {_ADVICE}"))
    return pruning_curve(file.resolve().parent.name, rows[0].get("metric", "metric"), rows)


def pruning_curve(name: str, metric: str, rows: Sequence[Mapping[str, Any]]) -> ReportTable:
    """Return what pruning cost a model step by step; ``rows`` are its points, or those of a CSV file of them."""
    parts = [part for part in ("heads", "neurons") if f"{part}_removed" in rows[0]]
    label, split = f"{' and '.join(parts).capitalize()} removed (%)", rows[0].get("split", "")
    scale, lines, cells = 100 if in_percent(metric) else 1, [], []
    for title, recovered in (("by importance", False), ("after recovery", True)):
        chosen = [row for row in rows if (str(row.get("recovered")) == "True") is recovered]
        points = [(100 * float(row["share_removed"]), scale * float(row["value"])) for row in chosen]
        bars = []
        for row in chosen if "low" in rows[0] else ():  # the 95% interval of the difference, around the value
            value, middle, low, high = (float(row[name]) for name in ("value", "points", "low", "high"))
            bars.append((scale * (value + (low - middle) / 100), scale * (value + (high - middle) / 100)))
        lines.append(Series(title, points, bars))
        cells += [[Cell(title), number(x, "{:.1f}".format), number(y, "{:.2f}".format)] for x, y in points]
    title = f"{name}: {metric}{' on ' + split if split else ''}"
    picture = line_chart(lines, title=title, x_label=label.lower(), y_label=metric_title(metric))
    return ReportTable(name, ["Line", label, metric_title(metric)], cells, pictures=[picture])
