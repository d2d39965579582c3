"""What more text without labels is worth: how much a student keeps of its teacher against the rows that it read."""

from collections.abc import Sequence
from statistics import mean

from compress.benchmarking.results.files import grouped, is_control_of
from compress.benchmarking.results.schema import Measurement
from compress.reporting.charts import svg
from compress.reporting.charts.sweeps import Sweep
from compress.reporting.tables.cells import EMPTY, Cell, difference, metric, number

HEADINGS = ["Model", "Rows without labels", "Steps", "Metric", "Kept", "Points to the teacher"]


def learning_curve(lines: Sequence[Measurement]) -> Sweep | None:
    """Return a chart for each student that was trained on several numbers of rows; its seeds are averaged.

    Students are of one kind if they share the recipe, whose name may end in their rows
    (:class:`compress.recipes.study.StudyStudent`). The control learns from gold rows alone, so that it is one level.
    """
    models = {line.model_sha256: line for line in lines if line.model_sha256 and line.kind != "competitor"}.values()
    students = [line for line in models if line.kind == "model" and line.unlabeled_rows and _kept(line)]
    curves = {name: own for name, own in grouped(students, _recipe).items() if len(_means(own)) > 1}
    if not curves:
        return None
    pictures, cells = [], []
    for name, own in curves.items():
        own.sort(key=lambda line: line.unlabeled_rows or 0)
        points = _means(own)
        series = [svg.Series(name, points)]
        found = [line for line in models if is_control_of(line, own) and _kept(line)]
        if found:
            level = mean(map(_kept, found))
            series.append(svg.Series("gold rows alone", [(rows, level) for rows, _ in (points[0], points[-1])]))
        title = f"Kept of the teacher: {name}"
        pictures.append(svg.line_chart(series, title=title, x_label="rows without labels", y_label="%", log="x"))
        cells += [_cells(line) for line in [*found, *own]]
    return Sweep("What more text is worth", pictures, HEADINGS, cells)


def _recipe(line: Measurement) -> str:
    return line.recipe.removesuffix(f"-{line.unlabeled_rows}")


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
