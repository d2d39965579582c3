"""A section of the report: the comparable rows, those of one data set on one host and device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from compress.benchmarking.results.files import Result, grouped, of_smallest_batch, results_of
from compress.benchmarking.results.formatting import (
    in_percent,
    metric_title,
    milliseconds,
    plural,
    times,
)
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.reporting.cost import DEVICES
from compress.reporting.curves import Chart, learning_curve, sweep
from compress.reporting.flips import Flips, flips_of
from compress.reporting.pareto import ORDER, PublishedPoint, marks, pareto_chart, published_figures
from compress.reporting.speedup_breakdown import Waterfall, breakdowns
from compress.reporting.summary import Leaders, is_surely_faster, outcome_of, verdict
from compress.reporting.survey import SurveyTable, survey
from compress.reporting.svg import Picture
from compress.reporting.tables import PAGE_ONLY, ResultsTable, results

_KIND_NOTES = {
    "control": "A control is the same student, trained with the same settings on gold labels only.",
    "baseline": "A baseline is a cheap classifier fitted on gold labels only: where it is good enough, no compressed "
    "model is needed.",
    "competitor": "A competitor is the same model in the tool that a user would otherwise pick.",
    "reference-model": "A reference model has random weights: it is there to compare speeds with published ones; it "
    "has no metric.",
}
CLOCKS = {"cpu": "CPU time", "wall": "wall-clock time"}
LOGARITHMIC_FROM = 6  # a range of speeds that a linear axis no longer shows well


@dataclass(frozen=True)
class AtLength:
    """The table of rows that were all made this many tokens long."""

    length: int
    table: ResultsTable


@dataclass(frozen=True)
class Section:
    """Everything about one data set on one host and device; the table is that of the fewest threads measured."""

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
    sweeps: list[Chart]
    at_lengths: list[AtLength]
    flips: list[Flips]
    survey: SurveyTable | None


@dataclass(frozen=True)
class Measured:
    """The rows of a section: ``rows`` of the table, ``swept`` with more threads, ``fixed`` of fixed lengths."""

    rows: list[Result]
    swept: list[Result]
    fixed: list[Result]
    lines: list[Measurement]
    leaders: Leaders

    @property
    def small_batches(self) -> list[Measurement]:
        """The line of every row at the smallest batch size that was measured of it."""
        return [row.small_batch for row in self.rows]

    @property
    def compared(self) -> list[Measurement]:
        """The lines of the smallest batch size of all rows; a run of larger batches only is not compared with them."""
        return of_smallest_batch(self.rows)


def gather(lines: Sequence[Measurement], budget_points: float = 1.0) -> list[Measured]:
    """Part lines into sections: what was measured of one data set on one host and device.

    The rows of the table are those as long as the data's own (or, without any, of the shortest length measured), with
    the fewest threads.

    Raises:
        CompressError: a line is of a kind or device that is not known here.
    """
    for line in lines:
        if line.kind not in {*ORDER, "pruning-step"} or line.device not in DEVICES:
            raise CompressError(
                f"{line.model} is a {line.kind!r} on {line.device!r}, which this compress does not know; "
                f"kinds are {', '.join(ORDER)}, devices {', '.join(DEVICES)}: use the compress that measured it"
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
    rows.sort(
        key=lambda row: (not row.small_batch.is_reference, ORDER[row.small_batch.kind] > 0, -row.small_batch.speedup)
    )
    return Measured(rows, swept, fixed, lines, Leaders.of(of_smallest_batch(rows), budget_points))


def section(measured: Measured, texts: Mapping[str, Sequence[str]]) -> Section:
    """Return everything that is shown of what was measured."""
    rows, lines, leaders, budget = (
        measured.rows,
        measured.small_batches,
        measured.leaders,
        measured.leaders.budget_points,
    )
    first, best = lines[0], leaders.best
    published = published_figures(lines)
    speeds = [line.speedup for line in measured.compared]
    kinds = [kind for kind in ORDER if any(line.kind == kind for line in lines)]
    sweeps = [learning_curve(lines), sweep(measured.swept, "threads", best), sweep(measured.fixed, "length", best)]
    by_length = grouped(measured.fixed, lambda row: row.small_batch.length or 0)
    gpus = first.host.get("gpu") or []
    machine = str(gpus[0]) if first.device == "cuda" and gpus else str(first.host.get("cpu", "unknown processor"))
    where = f"{machine}, {plural(first.threads, 'thread')}"
    length = "" if first.length is None else f", every row {first.length} tokens long"
    return Section(
        title=f"{first.data} ({plural(first.data_rows, 'row')}) on {where}{length}",
        data=first.data,
        data_sha256=first.data_sha256,
        host_id=first.host_id,
        device=first.device,
        threads=first.threads,
        length=first.length,
        verdict=verdict(measured.compared, leaders),
        outcome=outcome_of(best, budget) if best else "",
        picture=_picture(measured.compared, published),
        kinds=kinds + (["published"] if published else []),
        logarithmic=bool(speeds) and max(speeds) / min(speeds) > LOGARITHMIC_FROM,
        table=results(rows, budget),
        notes=_notes(measured),
        published=published,
        waterfalls=breakdowns(leaders.models, rows, measured.lines),
        sweeps=[one for one in sweeps if one],
        at_lengths=[AtLength(at, results(by_length[at], budget)) for at in sorted(by_length) if at != first.length],
        flips=flips_of(lines, texts),
        survey=survey(lines, measured.lines),
    )


def _picture(lines: Sequence[Measurement], published: Sequence[PublishedPoint]) -> Picture | None:
    drawn = marks(lines, published)
    if not any(mark.metric and mark.speedup for mark in drawn):
        return None
    name = lines[0].metric_name or "metric"
    title = f"{name} against speed-up at batch {lines[0].batch_size}"
    return pareto_chart(drawn, title=title, y_label=metric_title(name), scale=100.0 if in_percent(name) else 1.0)


def _faster_competitors(rows: Sequence[Result]) -> list[str]:
    """Return a sentence for each batch size at which a competitor is surely faster than every model."""
    found = {}
    for size in sorted({line.batch_size for row in rows for line in (row.small_batch, row.large_batch)}):
        lines = list(filter(None, (row.at(size) for row in rows)))
        models = [line for line in lines if line.is_compressed]
        competitors = [line for line in lines if line.kind == "competitor"]
        if not (models and competitors):
            continue
        if faster := [line for line in competitors if all(is_surely_faster(line, own) for own in models)]:
            theirs = max(faster, key=attrgetter("speedup"))
            compared = attrgetter("speedup_with_tokenizer" if theirs.tokenizer_inside else "speedup")
            ours = max(models, key=compared)
            found[theirs.batch_size] = (
                f"At batch {theirs.batch_size} {theirs.title} is faster ({times(theirs.speedup)}) than every model "
                f"here ({ours.title}: {times(compared(ours))}); 'compress show {theirs.runtime}' says where its guide "
                "is."
            )
    return list(found.values())


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
    """Say how everything was measured, and what of it is not in the table."""
    rows, lines = measured.rows, measured.small_batches
    line, kinds = lines[0], {line.kind for line in lines}
    rounds = max(line.rounds for line in lines)
    found = [
        f"Speed-ups are at batch {line.batch_size}, against the teacher in torch fp32 on the same rows: the median "
        f"over at most {plural(rounds, 'round')} of the ratio of {CLOCKS[line.clock]}, with a 95% interval; "
        "tokenisation is not in them unless a column says so.",
        "Latency and throughput are wall-clock times as observed on this host at that time, disturbances included.",
        f"Texts have {line.tokens_median:.0f} tokens in the median, {line.tokens_p95:.0f} at the "
        "95th percentile; batches are padded to their own longest row.",
        "Memory is what a process holds at its peak above what its libraries held before the model was loaded.",
    ]
    if (models := sum(line.is_compressed for line in lines)) > 1:
        found.append(
            f"The model named first was chosen among {models} combinations of a compressed model and a runtime on "
            "these examples, so that its figures are a little lucky: for a decision that matters, measure it on "
            "examples of its own."
        )
    found += [note for kind, note in _KIND_NOTES.items() if kind in kinds]
    found += [_tail(line) for line in lines if line.kind == "cascade"]
    found += _faster_competitors(rows)
    if inside := sorted({line.title for line in lines if line.tokenizer_inside}):
        found.append(
            f"Of {', '.join(inside)} the tokenisation cannot be told from the rest; it is in every speed of theirs."
        )
    if len({line.created for row in rows for line in row.lines}) > 1:
        found.append("The results come from more than one run on this host; each speed-up is within its own run.")
    shown = {line.title for line in lines}
    others = [row.small_batch for row in measured.swept if row.small_batch.title not in shown]
    for title, alike in grouped(others, attrgetter("title")).items():
        threads = " and ".join(map(str, sorted({line.threads for line in alike})))
        found.append(
            f"{title} was measured with {threads} threads alone, and is not in this table: report its results by "
            "themselves."
        )
    return found
