"""A section of the report: the comparable rows, those of one data set on one host and device, and what is said of them.

A line stands for its row of the table: it is that of the smallest batch size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from compress.benchmarking.results.files import Result, grouped, is_control_of, results_of, smallest_batch
from compress.benchmarking.results.formatting import (
    WIDE_NOTE,
    in_percent,
    in_points,
    is_wide,
    megabytes,
    metric_title,
    milliseconds,
    plural,
    points,
    shown_metric,
    span,
    speed_span,
    times,
    with_span,
)
from compress.benchmarking.results.schema import REFERENCE_RUNTIME, Measurement
from compress.benchmarking.results.verdict import UNDECIDED, WITHIN, WORSE, JudgedLines, Verdict
from compress.errors import refuse
from compress.evaluation.metrics import paired_difference
from compress.reporting.curves import learning_curve, sweep
from compress.reporting.pages import PAGE_ONLY, ReportTable
from compress.reporting.pareto import PublishedPoint, marks, pareto_chart, published_figures
from compress.reporting.rendering import ORDER
from compress.reporting.speedup_breakdown import Waterfall, breakdowns
from compress.reporting.survey import survey
from compress.reporting.svg import Picture
from compress.reporting.tables import DEVICES, Flips, ResultsTable, flips_of, results
from compress.tasks import metrics_by_name

Pair = tuple[Measurement, Measurement]

_KIND_NOTES = {
    "control": "A control is the same student, trained with the same settings on gold labels only.",
    "baseline": "A baseline is a cheap classifier fitted on gold labels only: where it is good enough, no compressed "
    "model is needed.",
    "competitor": "A competitor is the same model in the tool that a user would otherwise pick.",
    "reference-model": "A reference model has random weights: it is there to compare speeds with published ones; it "
    "has no metric.",
}
CLOCKS = {"cpu": "CPU time", "wall": "wall-clock time"}
MOSTLY = 0.8  # of the rows are of one class: what accuracy says is then about that one
LOGARITHMIC_FROM = 6  # a range of speeds that a linear axis no longer shows well


def control_pair(line: Measurement, lines: Sequence[Measurement]) -> Pair | None:
    """Return a student and its control, whose difference is what distillation is worth to a model; None without one.

    A model names its control; in older results a control is named after its student, else shares its recipe. Of an
    int8 model it is the student before int8 that is compared, so that int8 is not in the difference; in the model's own
    runtime if both are there.
    """
    scored = [other for other in lines if other.metric is not None]
    control = min(
        (other for other in scored if is_control_of(other, [line])),
        key=lambda other: (other.control_of != line.model, other.runtime != line.runtime),
        default=None,
    )
    if control is None:
        return None
    names, is_int8 = {line.model if line.control else control.control_of}, line.stage == "quantize"
    if line.control and is_int8:
        names = {other.model for other in lines if other.kind == "model" and other.model_sha256 in line.parents}
    students = [other for other in scored if other.kind == "model" and other.model in names]
    if not students and is_int8:
        return None  # the student before int8 was not measured, and int8 would be in the difference
    return min(students or [line], key=lambda other: other.runtime != control.runtime), control


def verdict(judged: JudgedLines) -> list[str]:
    """Return the sentences a reader needs if they read nothing else; the first one is the result.

    A baseline that is within the budget comes before every model: whoever reads no further should know of it.
    """
    lines, best, faster, budget = judged.lines, judged.best, judged.faster, in_points(judged.budget_points)
    teacher = _teacher(judged)
    if teacher is None:
        return ["The teacher in torch was not measured here, so there is nothing to judge the models by."]
    by_metric = sorted(lines, key=lambda line: -(line.metric or 0.0))
    baselines = [line for line in by_metric if line.kind == "baseline" and line.difference is not None]
    sentences = [
        f"{line.model} alone is within {budget} of the teacher: {shown_metric(line)} against "
        f"{shown_metric(teacher)}, {_interval(line)}."
        for line in baselines
        if judged.of(line).outcome == WITHIN
    ]
    if best is None:
        return [*sentences, "No compressed model was measured here, so there is none to judge."]
    others = []
    if baselines and not sentences:
        nearest = next((line for line in baselines if judged.of(line).outcome == UNDECIDED), baselines[0])
        if more := judged.of(nearest).more:
            others.append(f"{nearest.model} alone may be enough, at {_interval(nearest)}: undecided; {more}.")
        else:
            others.append(f"No baseline is within {budget}: the best, {nearest.model}, is at {_interval(nearest)}.")
    found = judged.of(best)
    sentences += [_best_sentence(best, teacher, found, budget), _accuracy_sentence(best, teacher, found)]
    sentences += what_accuracy_hides(judged)
    sentences += _control_sentence(control_pair(best, lines), teacher)
    if faster:
        sentences.append(
            f"{faster.title} is faster still, {with_span(faster.speedups, times)}, at {_interval(faster)}: whether "
            f"that is within {budget} is undecided; {judged.of(faster).more}."
        )
        sentences += _control_sentence(control_pair(faster, lines), teacher)
    sentences += [*others, *_faster_competitor(best, judged)]
    sentences += _cut_rows(lines)
    compared = [line for line in lines if not line.is_reference]
    if wide := [line for line in compared if is_wide(line.speedups)]:
        sentences.append(f"Known roughly only: {plural(len(wide), 'speed-up')} of {len(compared)}. {WIDE_NOTE}")
    return list(dict.fromkeys(sentences))  # an int8 model and its source have the same control


def _teacher(judged: JudgedLines) -> Measurement | None:
    """Return the teacher of the run of the best model."""
    teachers, best = [line for line in judged.lines if line.is_reference], judged.best
    return min(teachers, key=lambda line: best is not None and line.created != best.created, default=None)


def _best_sentence(line: Measurement, teacher: Measurement, judged: Verdict, budget: str) -> str:
    kept = line.metric_kept_percent
    size, full = megabytes(line.size_bytes), megabytes(teacher.size_bytes)
    told = f" {line.reach}" if line.length is None else ""
    said = (
        (f"has {shown_metric(line)}" if kept is None else f"keeps {kept:.1f}% of the teacher’s {line.metric_name}")
        + f" at {times(line.speedups.value)} its speed{told} ({speed_span(line.speedups, times)})"
        + (f", in {size} instead of {full}" if size != full else "")
    )
    return {
        WITHIN: f"{line.title} {said}: within {budget} of the teacher.",
        UNDECIDED: f"{line.title} {said}: whether that is within {budget} is undecided.",
        WORSE: f"No model is within {budget} of the teacher. The closest, {line.title}, {said}.",
    }[judged.outcome]


def _accuracy_sentence(line: Measurement, teacher: Measurement, judged: Verdict) -> str:
    value, low, high = map(points, line.figure("difference_points"))
    rows, unit = line.counted
    examples = f" in {line.data_rows:,} examples" if unit == "words" else ""
    # How much of the speed is left over the teacher in the model's own runtime, where that is another one.
    same = line.interval("speedup_same_runtime") if line.runtime != REFERENCE_RUNTIME else None
    alone = f" The model alone is {with_span(line.figure('speedup'), times)} as fast as the teacher's in torch"
    beside = f", {with_span(same, times)} as fast as that in {line.runtime}" if same else ""
    apart = "" if line.tokenizer_inside or line.length is not None else f"{alone}{beside}."
    return (
        f"Its {line.metric_name} is {shown_metric(line)} against {shown_metric(teacher)} on {rows:,} {unit}{examples}: "
        f"{value} points, and the data allow {span(low, high)} (95% paired interval)"
        f"{f'; {judged.more}' if judged.more else ''}.{apart}"
    )


def what_accuracy_hides(judged: JudgedLines) -> list[str]:
    """Say how much of the rarest class is found where one answer for all rows has an accuracy of :data:`MOSTLY`."""
    line, teacher = judged.best, _teacher(judged)
    if line is None or teacher is None:
        return []
    there = [one for one in teacher.classes if one["rows"] and one["recall"] is not None]
    rows = sum(one["rows"] for one in there)
    if teacher.metric_name != "accuracy" or len(there) < 2:
        return []
    by_rows = sorted(there, key=lambda one: one["rows"])
    rare, most = by_rows[0], by_rows[-1]
    if most["rows"] < MOSTLY * rows:
        return []
    own = {one["label"]: one for one in line.classes}
    figures = [
        f"{name} finds {one['recall']:.1%}"
        + (f" (average precision {one['average_precision']:.1%})" if one.get("average_precision") is not None else "")
        for name, one in ((teacher.model, rare), (line.title, own.get(rare["label"], rare)))
    ]
    return [
        f"Always answering {most['label']!r} has an accuracy of {most['rows'] / rows:.1%}: of the "
        f"{plural(rare['rows'], 'row')} of {rare['label']!r} {' and '.join(figures)}."
    ]


def _cut_rows(lines: Sequence[Measurement]) -> Iterator[str]:
    """Say how many test rows were longer than what models read, by how many, most first."""
    cut = grouped(
        (line for line in lines if line.truncated_rows), lambda line: (line.truncated_rows or 0, line.data_rows)
    )
    for (rows, of), some in sorted(cut.items(), reverse=True):
        by = ", ".join(dict.fromkeys(line.model for line in some))
        yield f"Longer than what is read, and cut: {rows:,} of {of:,} rows ({rows / of:.1%}) by {by}."


def _control_sentence(pair: Pair | None, teacher: Measurement) -> list[str]:
    """Say what distillation is worth, with the paired 95% interval of a student against its control."""
    if pair is None:
        return []
    student, control = pair
    sentence = (
        f"{student.model} trained on gold labels only reaches {shown_metric(control)} instead of "
        f"{shown_metric(student)}: distillation is worth {points(student.points_above(control))} points"
    )
    columns = (student.predictions, control.predictions, teacher.gold)
    if not all(columns) or not student.labels == control.labels == teacher.labels:  # predictions are their numbers
        return [f"{sentence}; without predictions in the results there is no interval to say how sure that is."]
    metric, classes = metrics_by_name()[student.metric_name or ""], len(student.labels)
    found = paired_difference(*map(np.asarray, columns), metric=metric, classes=classes)
    doubt = ", so these rows do not show that it helped" if found.low <= 0 <= found.high else ""
    return [f"{sentence} ({span(points(found.low), points(found.high))}){doubt}."]


def _faster_competitor(best: Measurement, judged: JudgedLines) -> list[str]:
    """Name a competitor that is surely faster than the best model and not surely worse than the budget."""
    within = f"within {in_points(judged.budget_points)}"
    outcomes = {WITHIN: within, UNDECIDED: f"whether that is {within} is undecided"}
    faster = [line for line in judged.lines if line.kind == "competitor" and is_surely_faster(line, best)]
    open_ones = [line for line in faster if judged.of(line).outcome in outcomes]
    return [
        f"A competitor is faster: {line.title} at {with_span(line.speedups, times)}, at {_interval(line)}: "
        f"{outcomes[judged.of(line).outcome]}."
        for line in sorted(open_ones, key=lambda line: -line.speedups.value)[:1]
    ]


def is_surely_faster(competitor: Measurement, best: Measurement) -> bool:
    """Tell whether intervals say so."""
    return competitor.speedups.low > best.speedups.high


def _interval(line: Measurement) -> str:
    return "{} points ({} to {})".format(*map(points, line.figure("difference_points")))


@dataclass(frozen=True)
class Section:
    """Everything about one data set on one host and device; the table is that of the fewest threads measured.

    ``at_lengths`` are tables of rows that were all made so many tokens long.
    """

    title: str
    data: str
    data_sha256: str
    host_id: str
    device: str
    threads: int
    length: int | None
    verdict: list[str]
    outcome: str
    picture: Picture | None = field(metadata=PAGE_ONLY)
    kinds: list[str]
    logarithmic: bool
    table: ResultsTable
    notes: list[str]
    published: list[PublishedPoint]
    waterfalls: list[Waterfall]
    sweeps: list[ReportTable]
    at_lengths: dict[int, ResultsTable]
    flips: list[Flips]
    survey: ReportTable | None


@dataclass(frozen=True)
class Measured:
    """The rows of a section: ``rows`` of the table, ``swept`` with more threads, ``fixed`` of fixed lengths.

    ``judged`` are the lines of the table's smallest batch size.
    """

    rows: list[Result]
    swept: list[Result]
    fixed: list[Result]
    lines: list[Measurement]
    judged: JudgedLines

    @property
    def leaders(self) -> list[Measurement]:
        """The best model and, behind it, a faster one that needs more examples to be as sure of."""
        return [line for line in (self.judged.best, self.judged.faster) if line is not None]

    @property
    def small_batches(self) -> list[Measurement]:
        """The line of every row at the smallest batch size that was measured of it."""
        return [row.small_batch for row in self.rows]


def gather(lines: Sequence[Measurement], budget_points: float = 1.0) -> list[Measured]:
    """Part lines into sections: what was measured of one data set on one host and device.

    The rows of the table are those as long as the data's own (or, without any, of the shortest length measured), with
    the fewest threads.

    Raises:
        CompressError: a line is of a kind or device that is not known here.
    """
    for line in lines:
        refuse(
            (
                line.kind not in {*ORDER, "pruning-step"} or line.device not in DEVICES,
                f"{line.model} is a {line.kind!r} on {line.device!r}, which this compress does not know; kinds are "
                f"{', '.join(ORDER)}, devices {', '.join(DEVICES)}: use the compress that measured it",
            )
        )
    # A baseline runs on the processor, also in the rounds of models on a GPU.
    run = attrgetter("data_sha256", "host_id", "created")
    devices = {run(line): line.device for line in lines if line.is_reference}

    def place(line: Measurement) -> tuple[str, ...]:
        device = devices.get(run(line), line.device) if line.kind == "baseline" else line.device
        return line.data_sha256, line.host_id, device

    return [_measured(group, budget_points) for group in grouped(lines, place).values()]


def _measured(lines: list[Measurement], budget_points: float) -> Measured:
    everything = results_of(lines)
    lengths = {row.small_batch.length for row in everything}
    main = None if None in lengths else min(filter(None, lengths))
    swept = [row for row in everything if row.small_batch.length == main]
    threads = min(row.small_batch.threads for row in swept)
    rows = [row for row in swept if row.small_batch.threads == threads]
    fixed = [row for row in everything if row.small_batch.length is not None and row.small_batch.threads == threads]
    smalls = attrgetter("small_batch")
    rows.sort(key=lambda row: (not smalls(row).is_reference, ORDER[smalls(row).kind] > 0, -smalls(row).speedups.value))
    smallest = smallest_batch(rows)
    judged = [line for row in rows if (line := row.at(smallest))]  # a run of larger batches only has none
    return Measured(rows, swept, fixed, lines, JudgedLines(judged, budget_points))


def section(measured: Measured, texts: Mapping[str, Sequence[str]]) -> Section:
    rows, lines, judged = measured.rows, measured.small_batches, measured.judged
    first, best, budget = lines[0], judged.best, judged.budget_points
    published, speeds = published_figures(lines), [line.speedups.value for line in judged.lines]
    sweeps = [learning_curve(lines), sweep(measured.swept, "threads", best), sweep(measured.fixed, "length", best)]
    lengths = sorted(filter(None, {row.small_batch.length for row in measured.fixed} - {first.length}))
    gpus = first.host.get("gpu") or []
    machine = str(gpus[0]) if first.device == "cuda" and gpus else str(first.host.get("cpu", "unknown processor"))
    length = "" if first.length is None else f", every row {first.length} tokens long"
    return Section(
        title=f"{first.data} ({plural(first.data_rows, 'row')}) on {machine}, {plural(first.threads, 'thread')}"
        f"{length}",
        data=first.data,
        data_sha256=first.data_sha256,
        host_id=first.host_id,
        device=first.device,
        threads=first.threads,
        length=first.length,
        verdict=verdict(judged),
        outcome=judged.of(best).outcome if best else "",
        picture=_picture(judged.lines, published),
        kinds=[kind for kind in ORDER if any(line.kind == kind for line in lines)] + ["published"] * bool(published),
        logarithmic=bool(speeds) and max(speeds) / min(speeds) > LOGARITHMIC_FROM,
        table=results(rows, budget),
        at_lengths={
            at: results([row for row in measured.fixed if row.small_batch.length == at], budget) for at in lengths
        },
        flips=flips_of(lines, texts),
        notes=_notes(measured),
        published=published,
        waterfalls=breakdowns(measured.leaders, rows, measured.lines),
        sweeps=[one for one in sweeps if one],
        survey=survey(lines, measured.lines),
    )


def _picture(lines: Sequence[Measurement], published: Sequence[PublishedPoint]) -> Picture | None:
    drawn = marks(lines, published)
    if not any(mark.metric and mark.speedup for mark in drawn):
        return None
    name = lines[0].metric_name or "metric"
    title = f"{name} against speed-up {lines[0].reach} at batch {lines[0].batch_size}"
    return pareto_chart(drawn, title=title, y_label=metric_title(name), scale=100.0 if in_percent(name) else 1.0)


def _faster_competitors(rows: Sequence[Result]) -> list[str]:
    found = []
    for size in sorted({line.batch_size for row in rows for line in (row.small_batch, row.large_batch)}):
        lines = list(filter(None, (row.at(size) for row in rows)))
        models = [line for line in lines if line.is_compressed]
        competitors = [line for line in lines if line.kind == "competitor"]
        faster = [line for line in competitors if models and all(is_surely_faster(line, own) for own in models)]
        for theirs in sorted(faster, key=lambda line: -line.speedups.value)[:1]:
            ours = max(models, key=lambda line: line.speedups.value)
            found.append(
                f"At batch {size} {theirs.title} is faster ({times(theirs.speedups.value)}) than every model "
                f"here ({ours.title}: {times(ours.speedups.value)}); 'compress show {theirs.runtime}' says where its "
                "guide is."
            )
    return found


def _tail(line: Measurement) -> str:
    """Say what a cascade's speed is made of: the median, which tables have, is that of its first member."""
    shares = [f"{name} answers {share:.1%}" for name, share in zip(line.members, line.answered, strict=False)]
    mean = "" if line.latency_mean_ms is None else f"{milliseconds(line.latency_mean_ms)} in the mean, "
    return (
        f"Of the rows of {line.title} {', '.join(shares)}. At batch {line.batch_size} it takes {mean}"
        f"{milliseconds(line.latency_p50_ms)} in the median, {milliseconds(line.latency_p95_ms)} at the 95th and "
        f"{milliseconds(line.latency_p99_ms)} at the 99th percentile: the tail is that of its last member. Its "
        "speed-up is the ratio of mean times."
    )


def _notes(measured: Measured) -> list[str]:
    rows, lines = measured.rows, measured.small_batches
    line, kinds, shown = lines[0], {line.kind for line in lines}, {line.title for line in lines}
    models = sum(line.is_compressed for line in lines)
    inside = sorted({line.title for line in lines if line.tokenizer_inside})
    others = [row.small_batch for row in measured.swept if row.small_batch.title not in shown]
    names = dict.fromkeys(other.title for other in others)
    counts = {title: sorted({other.threads for other in others if other.title == title}) for title in names}
    chosen = (
        f"The model named first was chosen among {models} combinations of a compressed model and a runtime on "
        "these examples, so that its figures are a little lucky: for a decision that matters, measure it on "
        "examples of its own."
    )
    of_what = " or ".join(dict.fromkeys(one.reach for one in lines))
    runs = "The results come from more than one run on this host; each speed-up is within its own run."
    return [
        f"Speed-ups are {of_what}, at batch {line.batch_size}, against the teacher in torch fp32 on the same rows: the "
        f"median over at most {plural(max(line.rounds for line in lines), 'round')} of the ratio of "
        f"{CLOCKS[line.clock]}, with a 95% interval. “Model alone” leaves out what is done to texts and labels, where "
        "it can be told apart.",
        "Latency and throughput are wall-clock times as observed on this host at that time, disturbances included; p50 "
        "is the sum of the medians of the model and of the rest.",
        f"Texts have {line.tokens_median:.0f} tokens in the median, {line.tokens_p95:.0f} at the "
        "95th percentile; batches are padded to their own longest row.",
        "Memory is what a process holds at its peak above what its libraries held before the model was loaded.",
        *([chosen] if models > 1 else []),
        *(note for kind, note in _KIND_NOTES.items() if kind in kinds),
        *(_tail(line) for line in lines if line.kind == "cascade"),
        *_faster_competitors(rows),
        *([f"{', '.join(inside)} take texts: the model alone was not measured."] if inside else []),
        *([runs] if len({line.created for row in rows for line in row.lines}) > 1 else []),
        *(
            f"{title} was measured with {' and '.join(map(str, threads))} threads alone, and is not in this table: "
            "report its results by themselves."
            for title, threads in counts.items()
        ),
    ]
