"""What more text without labels is worth: how much a student keeps of its teacher against the rows that it read."""

from collections.abc import Sequence
from statistics import mean

from compress.benchmarking.results.files import Result, grouped
from compress.benchmarking.results.schema import Measurement
from compress.reporting.charts import svg
from compress.reporting.charts.svg import Picture
from compress.reporting.charts.sweeps import LINES, Sweep
from compress.reporting.tables.cells import EMPTY, Cell, difference, metric, number

HEADINGS = ["Model", "Rows without labels", "Steps", "Metric", "Kept", "Points to the teacher"]


def learning_curve(rows: Sequence[Result]) -> Sweep | None:
    """Return a line a kind of student of which several read different numbers of rows; its seeds are averaged.

    The control of a student learns from gold rows alone, so that it is one level.
    """
    lines = {row.small_batch.model_sha256: row.small_batch for row in rows if row.small_batch.model_sha256}
    students = [line for line in lines.values() if line.kind == "model" and line.unlabeled_rows and _kept(line)]
    curves = [own for own in grouped(students, _shape).values() if len({line.unlabeled_rows for line in own}) > 1]
    if not curves:
        return None
    controls = {line.control_of: line for line in lines.values() if line.kind == "control"}
    series, cells = [], []
    for own in curves[:LINES]:
        own.sort(key=lambda line: line.unlabeled_rows or 0)
        largest = own[-1].unlabeled_rows or 0
        name = min((line.recipe for line in own), key=len)
        series.append(svg.Series(name, _means(own)))
        found = [control for line in own if (control := controls.get(line.model))]
        if found:
            level = mean(_kept(line) for line in found)
            series.append(svg.Series(f"{name}, gold rows alone", [(x, level) for x in (_means(own)[0][0], largest)]))
        cells += [_cells(line) for line in [*found, *own]]
    picture = Picture.both(
        lambda canvas: svg.line_chart(
            series,
            title="Kept of the teacher by rows without labels",
            x_label="rows without labels",
            y_label="%",
            canvas=canvas,
            log_x=True,
        )
    )
    return Sweep("What more text is worth", [picture], HEADINGS, cells)


def _shape(line: Measurement) -> tuple[object, ...]:
    """Return what tells kinds of students apart; vocabularies differ with the text."""
    return tuple(line.shape.get(key) for key in ("type", "layers", "hidden_size"))


def _kept(line: Measurement) -> float:
    return line.metric_kept_percent or 0.0


def _means(lines: Sequence[Measurement]) -> list[tuple[float, float]]:
    by_rows = grouped(lines, lambda line: line.unlabeled_rows or 0)
    return [(float(rows), mean(map(_kept, own))) for rows, own in sorted(by_rows.items())]


def _cells(line: Measurement) -> list[Cell]:
    return [
        Cell(line.model, "", line.model),
        number(line.unlabeled_rows, "{:,}".format) if line.kind == "model" else EMPTY,
        number(line.training_steps, "{:,}".format),
        metric(line),
        number(line.metric_kept_percent, "{:.1f}%".format),
        difference(line),
    ]
