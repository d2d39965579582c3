"""The survey's table made again: what was published of each system, and what is measured here of its recipe.

Published figures are those of Rogers et al. 2020, "A Primer in BERTology" (arXiv:2002.12327), Table 1. They are labels
beside ours: another teacher, other data, another machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import (
    NONE,
    in_percent,
    megabytes,
    plural,
    points,
    precision,
    shown,
    shown_metric,
    speed_span,
    times,
)
from compress.benchmarking.results.schema import REFERENCE_RUNTIME, Measurement
from compress.recipes import StudentRecipe, Survey, known_student
from compress.reporting.pages import EMPTY, Cell, ReportTable, integer, metric_cell, number
from compress.reporting.tables import CELLS
from compress.reporting.terminal import sparkline

NOT_MEASURED = Cell("not measured")
LATE = 4  # the share of the evaluations whose gain tells whether more steps would help: one of so many
# The columns in their order, with their headings.
HEADINGS = {
    "system": "System",
    "published": "Published",
    "recipe": "Recipe",
    "shape": "Architecture",
    "metric": "{metric}",
    "kept": "Kept",
    "difference": "Points to the teacher",
    "parameters": "Parameters",
    "disk": "Disk",
    "speedup_torch": "Speed-up, {batch}, torch",
    "speedup_best": "Speed-up, {batch}, best",
    "control": "Control",
    "worth": "Gain from distillation",
    "validation": "Validation",
    "steps": "Steps",
    "seeds": "Seeds",
    "command": "Command",
}
VALIDATION = (
    "Validation: of the first seed, the best score on the rows that choose the weights, its course over the last phase "
    "from lowest to highest, what of it the last quarter of that phase's evaluations brought, and the control's best."
)


@dataclass(frozen=True)
class Student:
    """What was measured of a recipe: the model as trained, and what its row is about (that, or it made int8).

    ``trained`` and ``judged`` are over all seeds; ``lines`` are those of all its models in all runtimes, ``compared``
    those of them that were measured as the others in the table. ``controls`` are those of the study by name, a line of
    each.
    """

    recipe: StudentRecipe
    lines: list[Measurement]
    compared: list[Measurement]
    trained: Aggregate | None
    judged: Aggregate
    controls: Mapping[str, Measurement]

    def line(self, one: Aggregate) -> Measurement:
        """Return the line of the first seed of what was aggregated."""
        return next(line for line in self.lines if (line.model, line.runtime) == (one.models[0], one.runtime))

    @property
    def timed(self) -> list[Measurement]:
        """The lines of what is judged, of the first seed that is compared: its shape is that of all."""
        judged = [line for line in self.compared if line.stage == self.judged.stage]
        seeds = [self.line(self.judged).training_seed, *(line.training_seed for line in judged)]
        return next(filter(None, ([line for line in judged if line.training_seed == seed] for seed in seeds)), [])


def survey(
    measured: Sequence[Measurement],
    lines: Sequence[Measurement],
    more: Sequence[StudentRecipe] = (),
    *,
    unlisted: bool = False,
) -> ReportTable | None:
    """Return the table of what was measured of one data set on one host; None where no recipe has a row in the survey.

    Args:
        measured: those of one number of threads, as a section of the report has them; speeds are of the smallest batch
            size.
        lines: all that were measured.
        more: recipes to show too where they were not measured.
        unlisted: return a table of any recipes.
    """
    students = _students(measured, lines)
    known = [*(student.recipe for student in students.values()), *(one for one in more if one.name not in students)]
    if not any(unlisted or recipe.survey for recipe in known):
        return None
    reference_models = {line.model: line for line in measured if line.kind == "reference-model"}
    rows = []
    listed: list[tuple[StudentRecipe, Survey | None]] = [(recipe, one) for recipe in known for one in recipe.survey]
    listed += [(recipe, None) for recipe in known if not recipe.survey]  # which the survey could not know
    for recipe, one in listed:
        cells = {
            "system": Cell(NONE, recipe.paper),
            "recipe": Cell(recipe.name, value=recipe.name),
            "command": Cell(recipe.command),
            "shape": NOT_MEASURED,
        }
        if one:  # how many times smaller it was reported to be, the share it kept, and how many times faster
            baseline = "" if one.baseline == "BERT-base" else f"against {one.baseline}"
            cells["system"] = Cell(one.system, f"{one.model}; {one.evaluated_on}", one.system)
            cells["published"] = Cell(one.in_short, baseline, one.performance_kept)
        if one and one.reference_model:  # random weights have no quality, and no recipe makes them
            cells["command"] = EMPTY
            if line := reference_models.get(one.reference_model):
                cells |= {
                    "shape": Cell(shape(line), f"{line.model} with random weights: speed only"),
                    "parameters": CELLS["parameters"](line),
                    "disk": CELLS["size_bytes"](line),
                    **dict.fromkeys(("speedup_torch", "speedup_best"), CELLS["speedup"](line)),
                }
        elif recipe.name in students:
            cells |= _measured(students[recipe.name])
        rows.append([cells.get(key, EMPTY) for key in HEADINGS])
    head = next((line for line in measured if line.is_reference), measured[0])
    names = {"metric": str(head.metric_name).capitalize(), "batch": f"batch {head.batch_size}"}
    of_rows = [line for student in students.values() for line in student.compared] or [head]
    has_validation = any(row[list(HEADINGS).index("validation")] != EMPTY for row in rows)
    notes = [*_notes(head, of_rows), *([VALIDATION] if has_validation else [])]
    return ReportTable("Published systems", [heading.format(**names) for heading in HEADINGS.values()], rows, notes)


def _students(measured: Sequence[Measurement], lines: Sequence[Measurement]) -> dict[str, Student]:
    smallest, compared_size = (min(line.batch_size for line in some) for some in (lines, measured))
    found = aggregate(line for line in lines if line.batch_size == smallest or line.predictions)
    controls = {line.model: line for line in measured if line.kind == "control"}
    students = {}
    for name, mine in grouped((line for line in measured if line.kind == "model"), attrgetter("recipe")).items():
        recipe = known_student(name)
        own = [one for one in found if one.kind == "model" and one.recipe == name]
        if recipe is None or not own:
            continue
        own.sort(key=lambda one: one.runtime != REFERENCE_RUNTIME)
        trained, rounded = (
            next((one for one in own if (one.stage == "quantize") is is_int8), None) for is_int8 in (False, True)
        )
        made = [line for line in lines if line.kind == "model" and line.recipe == name]
        compared = [line for line in mine if line.batch_size == compared_size]
        judged = (recipe.is_rounded and rounded) or trained or own[0]
        students[name] = Student(recipe, made, compared, trained, judged, controls)
    return students


def _measured(student: Student) -> dict[str, Cell]:
    judged, line = student.judged, student.line(student.judged)
    trained = student.line(student.trained) if student.trained else line
    teacher = judged.metric - judged.difference_points / 100
    in_torch = (CELLS["speedup"](timed) for timed in student.timed if timed.runtime == REFERENCE_RUNTIME)
    batch = plural(trained.training_batch_size, "row") if trained.training_batch_size else "different sizes"
    best = EMPTY
    if student.timed:
        fastest = max(student.timed, key=lambda line: line.speedups.value)
        where = f"{fastest.runtime}, {precision(fastest)}" if fastest.stage == "quantize" else fastest.runtime
        value = fastest.speedups.value
        best = Cell(times(value), f"{speed_span(fastest.speedups, times)}; {where}", value)
    scale = 100.0 if in_percent(judged.metric_name) else 1.0
    spread = "" if judged.metric_spread is None else f"± {scale * judged.metric_spread:.2f} over seeds"
    mean = metric_cell(judged.metric, judged.metric_name, small=spread)
    return {
        "shape": Cell(shape(trained), f"judged: {line.title}" if judged.stage == "quantize" else ""),
        "metric": CELLS["metric"](line) if judged.seeds == 1 else mean,
        "kept": number(100 * judged.metric / teacher if teacher > 0 else None, "{:.1f}%".format),
        "difference": number(judged.difference_points, points, (judged.low, judged.high)),
        "parameters": CELLS["parameters"](line),
        "disk": CELLS["size_bytes"](line),
        "speedup_torch": next(in_torch, EMPTY),
        "speedup_best": best,
        **_control(student),
        "validation": _validation(trained, student.controls.get(trained.control or "")),
        "steps": integer(trained.training_steps, small=f"of {batch}"),
        "seeds": number(judged.seeds, str),
    }


def shape(line: Measurement) -> str:
    """Return a model's layers and width and the size of its vocabulary: ``4 x 312, 30,522 pieces``."""
    known = line.shape or {}
    layers, width = known.get("layers") or len(line.heads_per_layer or ()), known.get("hidden_size")
    size = " ".join(str(part) for part in (known.get("type"), width) if part)
    if layers:
        size = f"{layers} x {width}" if width else plural(layers, "layer")
    pieces = f"{known['vocabulary_size']:,} pieces" if known.get("vocabulary_size") else ""
    return ", ".join(filter(None, (size, pieces))) or NONE


def _control(student: Student) -> dict[str, Cell]:
    """Return the metric of the same student without distillation, and what distillation adds to it before int8.

    Where it adds less than nothing, the recipe's limits stand below its name.
    """
    trained, recipe = student.trained, student.recipe
    if trained is None or trained.gain_points is None:
        return {}
    before = f"against {shown(trained.metric, trained.metric_name)} before rounding"
    control = trained.metric - trained.gain_points / 100
    return {
        "recipe": Cell(recipe.name, recipe.limits if trained.gain_points < 0 else "", recipe.name),
        "control": metric_cell(control, trained.metric_name, small="" if trained is student.judged else before),
        "worth": number(trained.gain_points, points, (trained.gain_low, trained.gain_high)),
    }


def _validation(line: Measurement, control: Measurement | None) -> Cell:
    """Return the best score on the validation rows, its course, what the last steps brought, and the control's best."""
    if not line.validation_curve:
        return EMPTY
    metric, scores = line.validation_metric, [score for _, score in line.validation_curve]
    notes = [sparkline(scores)]
    if late := len(scores) // LATE:
        notes.append(f"{points(100 * (max(scores) - max(scores[:-late])))} points in the last quarter")
    if control and control.validation_curve and control.validation_metric == metric:
        notes.append(f"control {shown(max(score for _, score in control.validation_curve), metric)}")
    return metric_cell(max(scores), metric, small=", ".join(notes))


def _notes(teacher: Measurement, measured: Sequence[Measurement]) -> list[str]:
    metric = f", {teacher.metric_name} {shown_metric(teacher)}" if teacher.is_reference else ""
    budget = next((line.budget for line in measured if line.budget), "")
    commands = " and ".join(f"'{command}'" for command in dict.fromkeys(line.command for line in measured))
    made = f"Made by {commands}" + (f", at the budget {budget}." if budget else ".")
    return [
        f"{teacher.data}, n = {teacher.metric_rows:,}; 95% intervals, paired where two models are compared. The "
        f"teacher: {shape(teacher)}, {megabytes(teacher.size_bytes)}{metric}.",
        "Published: times smaller, share of performance kept, times faster; against BERT-base unless another is named, "
        "by Rogers et al. 2020 (arXiv:2002.12327). Ours are against the teacher above, in torch float32 on this "
        "machine.",
        "The control is the same student from the same start, trained for as many steps on gold labels alone. Recipes "
        "of one architecture, vocabulary, augmentation and training share it.",
        f"{made} The command of a row goes on with '--teacher DIR --unlabeled FILE --train FILE -o DIR', for a "
        "teacher of your own.",
    ]
