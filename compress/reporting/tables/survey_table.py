"""The survey's table made again: what was published of each system, and what is measured here of its recipe.

Published figures are those of Rogers et al. 2020, "A Primer in BERTology" (arXiv:2002.12327), Table 1. They are labels
beside ours: another teacher, other data, another machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compress import recipes
from compress.benchmarking.candidates import REFERENCE_RUNTIME
from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.files import Result
from compress.benchmarking.results.formatting import (
    NONE,
    in_percent,
    megabytes,
    plain,
    plural,
    points,
    precision,
    shown,
    shown_metric,
    span,
    table,
    times,
)
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.recipes import StudentRecipe, Survey
from compress.reporting.leaders import teacher_row
from compress.reporting.tables import cells
from compress.reporting.tables.cells import EMPTY, Cell

NO_CHECKPOINT = "no pretrained checkpoint"
NOT_MEASURED = Cell("not measured")
HEADINGS = ("System", "Published", "Recipe")
# What the columns hold, in their order.
KEYS = (
    "system",
    "published",
    "recipe",
    "shape",
    "metric",
    "kept",
    "difference",
    "parameters",
    "disk",
    "speedup_torch",
    "speedup_best",
    "control",
    "worth",
    "steps",
    "seeds",
    "command",
)


@dataclass(frozen=True)
class SurveyTable:
    """Rows of cells under headings, in the order of :data:`KEYS`."""

    headings: list[str]
    rows: list[list[Cell]]
    notes: list[str]


@dataclass(frozen=True)
class Student:
    """What was measured of a recipe: the model as trained, and what its row is about (that, or it made int8).

    ``trained`` and ``judged`` are over all seeds; ``rows`` are those of all its models in all runtimes.
    """

    rows: list[Result]
    trained: Aggregate | None
    judged: Aggregate

    def line(self, one: Aggregate) -> Measurement:
        """Return the line of the first seed of what was aggregated."""
        found = [row.small_batch for row in self.rows if row.small_batch.model == one.models[0]]
        return next(line for line in found if line.runtime == one.runtime)

    @property
    def timed(self) -> list[Measurement]:
        """The lines of what is judged, of one seed, whose shape is that of all: the first whose speed is not noise."""
        lines = [row.small_batch for row in self.rows if row.small_batch.stage == self.judged.stage]
        seeds = list(dict.fromkeys(line.training_seed for line in lines))
        runtimes = [line.runtime for line in lines]
        runtime = REFERENCE_RUNTIME if REFERENCE_RUNTIME in runtimes else runtimes[0]
        quiet = [line.training_seed for line in lines if line.runtime == runtime and not line.noisy]
        chosen = next((seed for seed in seeds if seed in quiet), seeds[0])
        return [line for line in lines if line.training_seed == chosen]


def survey(
    rows: Sequence[Result], lines: Sequence[Measurement], more: Sequence[StudentRecipe] = ()
) -> SurveyTable | None:
    """Return the table of what was measured of one data set on one host; None where no recipe has a row in the survey.

    Args:
        rows: of one number of threads, as a section of the report has them.
        lines: what these rows are of.
        more: recipes to show too where they were not measured.
    """
    students = _students(rows, lines)
    known = [recipe for name in students if (recipe := _recipe(name))]
    known += [recipe for recipe in more if recipe.name not in students]
    if not any(recipe.survey for recipe in known):
        return None
    listed: list[tuple[StudentRecipe, Survey | None]] = [(recipe, one) for recipe in known for one in recipe.survey]
    listed += [(recipe, None) for recipe in known if not recipe.survey]  # what the survey could not know
    reference_models = {
        row.small_batch.model: row.small_batch for row in rows if row.small_batch.kind == "reference-model"
    }
    teacher = teacher_row(rows)
    head = teacher.small_batch if teacher else rows[0].small_batch
    return SurveyTable(
        headings(head),
        [
            [*_published(recipe, one), *_cells(students.get(recipe.name), one, reference_models), _command(recipe, one)]
            for recipe, one in listed
        ],
        _notes(head, rows),
    )


def unmeasured(students: Sequence[StudentRecipe]) -> str:
    """Return what was published of systems and the recipes of these, in Markdown, before anything is measured."""
    rows = [[*_published(recipe, one), _command(recipe)] for recipe in students for one in recipe.survey]
    rows += [[*_published(recipe, None), _command(recipe)] for recipe in students if not recipe.survey]
    text = [[cells.in_one_line(cell) for cell in row] for row in rows]
    return table([*HEADINGS, "Command"], text) + "\n\nNot measured yet.\n"


def headings(line: Measurement) -> list[str]:
    """Return the headings for what a line's metric and batch size are."""
    batch = f"batch {line.batch_size}"
    return [
        *HEADINGS,
        "Architecture",
        str(line.metric_name).capitalize(),
        "Kept",
        "Points to the teacher",
        "Parameters",
        "Disk",
        f"Speed-up, {batch}, torch",
        f"Speed-up, {batch}, best",
        "Control",
        "Gain from distillation",
        "Steps",
        "Seeds",
        "Command",
    ]


def as_markdown(found: SurveyTable) -> str:
    """Return the table and its notes in Markdown."""
    text = [[cells.in_one_line(cell) for cell in row] for row in found.rows]
    return "\n".join([table(found.headings, text), "", *(f"* {plain(note)}" for note in found.notes)]) + "\n"


def published_in_short(found: SurveyTable, line: Measurement) -> dict[str, dict[str, str]]:
    """Return by recipe what was measured, as text by :data:`KEYS`, with what the data and the metric are called."""
    about = {"data": line.data, "metric_name": line.metric_name or "", "made_by": line.command}
    rows = [dict(zip(KEYS, row, strict=True)) for row in found.rows]
    return {
        row["recipe"].text: {**about, **{key: cells.in_one_line(row[key]) for key in KEYS[3:]}}
        for row in rows
        if row["metric"] != EMPTY  # neither what was not measured, nor a reference model
    }


def published(one: Survey) -> Cell:
    """Return how many times smaller a system was reported to be, the share it kept and how many times faster it was."""
    baseline = "" if one.baseline == "BERT-base" else f"against {one.baseline}"
    return Cell(one.in_short, baseline, one.performance_kept)


def _students(rows: Sequence[Result], lines: Sequence[Measurement]) -> dict[str, Student]:
    """Gather what was measured by recipe, in the order of the rows."""
    smallest = min(line.batch_size for line in lines)
    found = aggregate(line for line in lines if line.batch_size == smallest or line.predictions)
    students = {}
    for recipe in dict.fromkeys(row.small_batch.recipe for row in rows if row.small_batch.kind == "model"):
        known = _recipe(recipe)
        own = [one for one in found if one.kind == "model" and one.recipe == recipe]
        own.sort(key=lambda one: one.runtime != REFERENCE_RUNTIME)
        trained = next((one for one in own if one.stage != "quantize"), None)
        judged = trained
        if known and known.is_rounded:
            judged = next((one for one in own if one.stage == "quantize"), trained)
        if known and (judged := judged or next(iter(own), None)):
            mine = [row for row in rows if row.small_batch.kind == "model" and row.small_batch.recipe == recipe]
            students[recipe] = Student(mine, trained, judged)
    return students


def _recipe(name: str) -> StudentRecipe | None:
    if name not in recipes.recipe_names("students"):
        return None
    try:
        found: StudentRecipe = recipes.load_recipe("students", name)
    except CompressError:  # a recipe that has since been broken is no reason not to show results
        return None
    return found


def _published(recipe: StudentRecipe, one: Survey | None) -> list[Cell]:
    note = NO_CHECKPOINT if any(NO_CHECKPOINT in part for part in recipe.missing) else ""
    name = Cell(recipe.name, note, recipe.name)
    if one is None:
        return [Cell(NONE, recipe.paper), EMPTY, name]
    return [Cell(one.system, f"{one.model}; {one.evaluated_on}", one.system), published(one), name]


def _command(recipe: StudentRecipe, one: Survey | None = None) -> Cell:
    return EMPTY if one and one.reference_model else Cell(recipe.command)


def _cells(student: Student | None, one: Survey | None, reference_models: Mapping[str, Measurement]) -> list[Cell]:
    """Return the cells from the shape to the seeds: of the student, or of a reference model, which has no quality."""
    if one is None or not one.reference_model:
        return _measured(student)
    line = reference_models.get(one.reference_model)
    if line is None:
        return _measured(None)
    speed = cells.ratio(line, "speedup")
    known = Result((line,))
    return [
        Cell(shape(line), f"{one.reference_model} with random weights: speed only"),
        EMPTY,
        EMPTY,
        EMPTY,
        cells.parameters(known),
        cells.disk(known),
        speed,
        speed,
        *[EMPTY] * 4,
    ]


def _measured(student: Student | None) -> list[Cell]:
    """Return the cells from the shape to the seeds."""
    if student is None:
        return [NOT_MEASURED, *[EMPTY] * 11]
    judged, line = student.judged, student.line(student.judged)
    trained = student.line(student.trained) if student.trained else line
    teacher = judged.metric - judged.difference_points / 100
    return [
        Cell(shape(trained), _what(judged, line)),
        _metric(judged, line),
        cells.percent(100 * judged.metric / teacher if teacher > 0 else None),
        _difference(judged.difference_points, judged.low, judged.high),
        cells.parameters(Result((line,))),
        cells.disk(Result((line,))),
        _in_torch(student),
        _fastest(student),
        *_control(student),
        _steps(trained),
        Cell(str(judged.seeds), "", judged.seeds),
    ]


def shape(line: Measurement) -> str:
    """Return a model's layers and width and the size of its vocabulary: ``4 x 312, 30,522 pieces``."""
    known = line.shape or {}
    layers = known.get("layers") or len(line.heads_per_layer or ())
    width = known.get("hidden_size")
    if layers and width:
        parts = [f"{layers} x {width}"]
    elif layers:
        parts = [plural(layers, "layer")]
    else:
        parts = [" ".join(str(part) for part in (known.get("type"), width) if part)]
    parts += [f"{known['vocabulary_size']:,} pieces"] if known.get("vocabulary_size") else []
    return ", ".join(filter(None, parts)) or NONE


def _what(judged: Aggregate, line: Measurement) -> str:
    """Say what was judged where it is not the model as it was trained."""
    return f"judged: {line.model} in {line.runtime}" if judged.stage == "quantize" else ""


def _metric(judged: Aggregate, line: Measurement) -> Cell:
    scale = 100.0 if in_percent(judged.metric_name) else 1.0
    if judged.seeds == 1:
        return cells.metric(line, scale)
    text = shown(judged.metric, judged.metric_name)
    spread = "" if judged.metric_spread is None else f"± {scale * judged.metric_spread:.2f} over seeds"
    return Cell(text, spread, scale * judged.metric)


def _difference(value: float | None, low: float | None, high: float | None) -> Cell:
    if value is None:
        return EMPTY
    return Cell(points(value), "" if low is None or high is None else span(points(low), points(high)), value, low, high)


def _in_torch(student: Student) -> Cell:
    """Return the speed-up of the judged model in the runtime that all are held against, if it runs there."""
    found = [line for line in student.timed if line.runtime == REFERENCE_RUNTIME]
    return cells.ratio(found[0], "speedup") if found else EMPTY


def _before(student: Student) -> str:
    """Return the metric that the control is compared with, where the row is about what was made of that model."""
    trained = student.trained
    if trained is None or trained is student.judged:
        return ""
    return f"against {shown(trained.metric, trained.metric_name)} before rounding"


def _fastest(student: Student) -> Cell:
    """Return the best speed-up of the judged model in any runtime."""
    quiet = [line for line in student.timed if not line.noisy]
    if not quiet:
        return Cell("too noisy")
    line = max(quiet, key=lambda one: one.speedup)
    made = f", {precision(line)}" if line.stage == "quantize" else ""
    return Cell(times(line.speedup), f"{line.runtime}{made}", line.speedup)


def _control(student: Student) -> list[Cell]:
    """Return the metric of the same student without distillation, and what distillation adds to it before int8."""
    trained = student.trained
    if trained is None or trained.gain_points is None:
        return [EMPTY, EMPTY]
    metric = trained.metric - trained.gain_points / 100
    scale = 100.0 if in_percent(trained.metric_name) else 1.0
    return [
        Cell(shown(metric, trained.metric_name), _before(student), scale * metric),
        _difference(trained.gain_points, trained.gain_low, trained.gain_high),
    ]


def _steps(line: Measurement) -> Cell:
    steps, rows = line.training_steps, line.training_batch_size
    if steps is None:
        return EMPTY
    return Cell(f"{steps:,}", f"of {plural(rows, 'row')}" if rows else "of different sizes", steps)


def _notes(teacher: Measurement, rows: Sequence[Result]) -> list[str]:
    """Say what every figure is of."""
    metric = f", {teacher.metric_name} {shown_metric(teacher)}" if teacher.is_reference else ""
    budget = next((row.small_batch.budget for row in rows if row.small_batch.budget), "")
    command = f"Made by '{teacher.command}'" + (f", at the budget {budget}." if budget else ".")
    return [
        f"{teacher.data}, n = {teacher.metric_rows:,}; 95% intervals, paired where two models are compared. The "
        f"teacher: {shape(teacher)}, {megabytes(teacher.size_bytes)}{metric}.",
        "Published: times smaller, share of performance kept, times faster; against BERT-base unless another is named, "
        "by Rogers et al. 2020 (arXiv:2002.12327). Ours are against the teacher above, in torch float32 on this "
        "machine.",
        "The control is the same student from the same start, trained for as many steps on gold labels alone. Recipes "
        "of one architecture, vocabulary, augmentation and training share it.",
        f"{command} The command of a row goes on with '--teacher DIR --unlabeled FILE --train FILE -o DIR', for a "
        "teacher of your own.",
    ]
