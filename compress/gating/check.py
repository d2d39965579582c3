"""Gating stage: judge results against budgets and reference results by 95% intervals.

Size, memory and the share of cut rows have no interval and are compared directly. Quality is compared with reference
results of any host, speed with those of the same host only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from compress.benchmarking.results import verdict
from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.files import Result, Results, grouped
from compress.benchmarking.results.formatting import (
    in_percent,
    in_points,
    megabytes,
    milliseconds,
    plural,
    times,
)
from compress.benchmarking.results.schema import Measurement
from compress.errors import refuse
from compress.evaluation.metrics import paired_difference
from compress.gating.budgets import GateBudget, Tolerance, is_meant, select
from compress.gating.judgement import (
    BROKEN,
    EXIT_CODES,
    HOLDS,
    UNDECIDED,
    Figures,
    Judgement,
    Limit,
    as_loss,
    lost,
    shown_interval,
)
from compress.gating.parts import judge_parts
from compress.gating.reference import read_against, read_reference
from compress.inference.speedup_intervals import Interval, divided
from compress.requests.measuring import OF_PARTS
from compress.tasks import metrics_by_name


@dataclass(frozen=True)
class Change:
    """A model then and now; a speed is None where it cannot be compared, a line None where there is none."""

    subject: str
    then: Measurement | None
    now: Measurement | None
    points: Figures | None = None
    speed_ratio: Figures | None = None


@dataclass(frozen=True)
class GateVerdict:
    """Every judgement, what a reader must know besides, and how models changed since older results.

    ``stored`` are the files of the baseline that was renewed, each with what is no longer in it.
    """

    judgements: tuple[Judgement, ...] = ()
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    older: str = ""
    stored: Mapping[Path, Sequence[str]] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """``broken`` if any judgement is, else ``undecided`` if any is, else ``holds``."""
        outcomes = {judgement.outcome for judgement in self.judgements}
        return next((one for one in (BROKEN, UNDECIDED) if one in outcomes), HOLDS)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    @property
    def sentences(self) -> list[str]:
        return [judgement.sentence for judgement in self.judgements]


# Settings that tell two lines of one model and runtime apart, in words.
_SETTINGS = {
    "device": "on {}",
    "threads": "threads {}",
    "length": "length {}",
    "padding": "padding {}",
    "data": "on {}",
    "training_seed": "seed {}",
    "host_id": "host {}",
}


def subjects(lines: Sequence[Measurement]) -> list[str]:
    """Name each line by its model and runtime, and by the settings that differ between the lines."""
    vary = {key for key in _SETTINGS if len({getattr(line, key) for line in lines}) > 1}
    named = []
    for line in lines:
        shown = vary | {"device"} if line.device != "cpu" else vary
        given = {key: getattr(line, key) for key in _SETTINGS if key in shown}
        settings = [_SETTINGS[key].format(value) for key, value in given.items() if value is not None]
        named.append(", ".join([line.title, *settings]))
    return named


# Relative to the teacher in torch: of that line itself there is nothing to judge.
RELATIVE = ("max_accuracy_drop", "max_drop_any_class", "max_drop_any_slice", "min_speedup", "min_model_speedup")
# The same for every batch size, thread count and length of a model in a runtime.
OF_THE_MODEL = ("max_accuracy_drop", "min_metric", *OF_PARTS, "max_calibration_error", "max_truncated", "max_size")
MORE_EXAMPLES = "more examples would narrow it"
MORE_SEEDS = "more training seeds would narrow it, and more examples"
ONE_MODEL = attrgetter("data_sha256", "host_id", "model", "runtime", "device", "model_sha256")


def judge(limit: Limit, line: Measurement) -> Judgement:
    most = limit.value
    match limit.gate:
        case "max_accuracy_drop":
            what, missing, found = f"the loss of at most {in_points(most)}", "metric", verdict.judge_drop_of(line, most)
            if line.difference and found:
                loss = as_loss(line.difference)
                return limit.judged(f"{what} of {line.metric_name}", loss, found, lost, *line.counted)
        case "min_metric":
            what, missing, figures = f"the metric of at least {most:g}", "metric", line.interval("metric")
            if figures:
                form = "{:.2%}".format if in_percent(line.metric_name) else "{:.4f}".format
                found = verdict.at_least(figures.low, figures.high, most, MORE_EXAMPLES)
                what = f"the {line.metric_name} of at least {form(most)}"
                return limit.judged(what, figures, found, form, *line.counted)
        case "max_calibration_error":
            what, missing = f"the calibration error of at most {most:g}", "probabilities, and so no calibration error"
            if figures := line.interval("calibration_error"):
                found = verdict.at_least(-figures.high, -figures.low, -most, MORE_EXAMPLES)
                return limit.judged(what, figures, found, "{:.3f}".format, *line.counted)
        case "max_truncated":
            what, missing = f"the share of cut rows of at most {most:.2%}", "count of the rows that were cut"
            if line.truncated_rows is not None:
                share, tokens = line.truncated_rows / line.data_rows, plural(line.max_length, "token")
                why = f"{share:.2%} ({line.truncated_rows:,} of {line.data_rows:,} rows are longer than {tokens})"
                return limit.because(
                    what, HOLDS if share <= most else BROKEN, why, share, share, share, line.data_rows, "rows"
                )
        case "max_p95_ms":
            figures = line.text_p95_ms
            found = verdict.at_least(-figures.high, -figures.low, -most, verdict.NARROWER)
            what = f"the p95 latency {line.reach} of at most {milliseconds(most)} at batch {line.batch_size}"
            return limit.judged(what, figures, found, milliseconds, line.rounds, "rounds")
        case "min_speedup" | "min_model_speedup":
            figures = line.speedups if limit.gate == "min_speedup" else line.figure("speedup")
            alone = (
                ", from text to label, as its runtime reads texts," if line.tokenizer_inside else " of the model alone"
            )
            alone = "" if limit.gate == "min_speedup" else alone
            what = f"the speed-up of at least {times(most)}{alone} at batch {line.batch_size}"
            return limit.judged(what, figures, verdict.judge_speedup(*figures, most), times, line.rounds, "rounds")
        case _:
            what, value = ("size", line.size_bytes) if limit.gate == "max_size" else ("memory", line.model_memory_bytes)
            why = f"{megabytes(value)} ({value:,} bytes, n = 1, no interval)"
            what = f"the {what} of at most {megabytes(most) if most >= 1000 else plural(int(most), 'byte')}"
            return limit.because(what, HOLDS if value <= most else BROKEN, why, value, value, value, 1, "measurement")
    return limit.unknown(what, line, missing)


def baselines_within(rows: Sequence[Result], budgets: Sequence[GateBudget]) -> list[str]:
    """Say which baselines are, or may be, within the loosest budget of a loss on their data."""
    notes = []
    for line in (row.small_batch for row in rows if row.small_batch.kind == "baseline"):
        drops = [one.max_accuracy_drop for one in budgets if is_meant(line, "data", one.data)]
        budget = max((drop for drop in drops if drop is not None), default=None)
        found = None if budget is None else verdict.judge_drop_of(line, budget)
        if budget is None or found is None or line.difference is None:
            continue
        if found.outcome == verdict.WORSE or line.difference.value < -budget:
            continue
        loss, low, high = as_loss(line.difference)
        count, of = line.counted
        notes.append(
            f"A baseline {'is' if found.outcome == verdict.WITHIN else 'may be'} within the budget of "
            f"{in_points(budget)} of {line.metric_name}, fitted on gold labels only: {line.model}, "
            f"{lost(loss)} on {count:,} {of} ({shown_interval(lost, low, high)})."
        )
    return list(dict.fromkeys(notes))


def judge_over_seeds(limit: float, chosen: Sequence[Measurement], lines: Sequence[Measurement]) -> list[Judgement]:
    """Judge the mean loss over seeds of every recipe among the chosen lines, with seeds and rows resampled.

    One seed says nothing about another: a recipe with a single one is undecided.
    """
    chosen = [line for line in chosen if not line.is_reference]
    sets = {line.data_sha256 for line in chosen}
    asked = {(line.model, line.runtime, line.device): line for line in chosen}
    found = []
    for mean in aggregate(line for line in lines if line.data_sha256 in sets):
        members = {(model, mean.runtime, mean.device) for model in mean.models}
        if members & set(asked):
            found.append(_judge_mean(limit, mean))
        asked = {key: line for key, line in asked.items() if key not in members}
    what, rest = f"the mean loss over seeds of at most {in_points(limit)}", list(asked.values())
    return found + [
        Limit("max_accuracy_drop", limit, subject).unknown(what, line, "metric")
        for line, subject in zip(rest, subjects(rest), strict=True)
    ]


def _judge_mean(most: float, mean: Aggregate) -> Judgement:
    subject = f"{mean.name} in {mean.runtime}" + (f", on {mean.device}" if mean.device != "cpu" else "")
    limit = Limit("max_accuracy_drop", most, subject)
    what = f"the mean loss over seeds of at most {in_points(most)} of {mean.metric_name}"
    if mean.low is None or mean.high is None or mean.seeds < 2:
        loss = -mean.difference_points
        missing = "; ".join(mean.notes) or f"there is {mean.seeds} training seed, and a mean needs two or more"
        why = f"{lost(loss)} on {mean.rows:,} examples, but {missing}"
        return limit.because(what, UNDECIDED, why, loss, count=mean.seeds, of="seeds")
    figures = as_loss((mean.difference_points, mean.low, mean.high))
    found = verdict.at_least(mean.low, mean.high, -most, MORE_SEEDS)
    return limit.judged(what, figures, found, lost, mean.seeds, f"seeds and {mean.rows:,} examples")


_SAME_MODEL = attrgetter("metric_name", "model", "runtime", "device")
_SAME_ROWS = attrgetter("metric_name", "model", "runtime", "device", "data_sha256", "model_sha256", "created")
_SAME_GOLD = attrgetter("data_sha256", "labels")
_SAME_METHOD = attrgetter("schema", "clock")
_SAME_SHAPE = attrgetter("shape", "heads_per_layer", "ffn_per_layer", "parameters")
_SAME_RUN = attrgetter("data_sha256", "created")
_SAME_SPEED = attrgetter("host_id", "threads", "batch_size", "length", "padding", "max_length")


@dataclass
class ReferenceComparison:
    """What came of comparing ``lines`` with ``older`` ones, which a reader knows as ``name``."""

    lines: Sequence[Measurement]
    older: Sequence[Measurement]
    name: str
    judgements: list[Judgement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def judge(self, chosen: Sequence[Measurement], tolerance: Tolerance) -> None:
        """Judge lines by a tolerance; what cannot be compared becomes a note or is undecided, never passed over."""
        judged: set[tuple[object, ...]] = set()
        for line, subject in zip(chosen, subjects(chosen), strict=True):
            known = [old for old in self.older if _SAME_MODEL(old) == _SAME_MODEL(line)]
            before = [old for old in known if old.data_sha256 == line.data_sha256]
            if before:
                self._judge_known(line, subject, tolerance, before, judged)
            elif known:
                what = f"the loss of at most {in_points(tolerance.max_drop)} against {self.name}"
                count, of = line.counted
                why = (
                    f"it was measured there on other data than {line.data} ({count:,} {of}); write it anew with "
                    "--update-baseline"
                )
                limit = Limit("baseline_drop", tolerance.max_drop, subject)
                self.judgements.append(limit.because(what, UNDECIDED, why, count=count, of=of))
                self.changes.append(Change(subject, _newest(known), line))
            else:
                self.notes.append(f"{subject} is not in {self.name}, so it is not compared.")
                self.changes.append(Change(subject, None, line))
        there = {(line.model, line.runtime) for line in self.lines}
        gone = [old for old in self.older if old.is_compressed and (old.model, old.runtime) not in there]
        for (model, runtime), lines in grouped(gone, lambda old: (old.model, old.runtime)).items():
            last = _newest(lines)
            if not any(change.now is None and change.then is last for change in self.changes):
                self.notes.append(f"{model} in {runtime} is in {self.name} and not in these results.")
                self.changes.append(Change(f"{model} in {runtime}", last, None))

    def _judge_known(
        self,
        line: Measurement,
        subject: str,
        tolerance: Tolerance,
        before: Sequence[Measurement],
        judged: set[tuple[object, ...]],
    ) -> None:
        """Judge a line by older ones; its metric only if its model is not one of those ``judged``, which it joins."""
        here = [old for old in before if old.host_id == line.host_id]
        like = [old for old in here if _SAME_SPEED(old) == _SAME_SPEED(line)]
        then = _newest(like or here or before)
        difference = None
        if line.interval("metric") and then.interval("metric"):
            difference = self._difference(line, then)
            if ONE_MODEL(line) not in judged:
                most = tolerance.max_drop
                found = verdict.judge_drop(*difference, most, line.data_rows)
                what = f"the loss of at most {in_points(most)} of {line.metric_name} against the baseline"
                limit = Limit("baseline_drop", most, subject)
                self.judgements.append(limit.judged(what, as_loss(difference), found, lost, *line.counted))
            judged.add(ONE_MODEL(line))
        ratio = None
        if not like:
            missing = "with these settings" if here else f"on this host ({line.host_id})"
            why = f"{self.name} has no speed measured {missing}"
        elif _SAME_METHOD(line) != _SAME_METHOD(then):
            why = f"{self.name} measured its speed by another method"
        elif not (teacher := _teacher(self.older, then)):
            why = f"{self.name} does not say over which teacher"
        elif teacher != _teacher(self.lines, line):
            why = f"{self.name} has speed-ups over a teacher of another shape"
        else:
            why = ""
            ratio = divided(line.speedups, then.speedups)
            least = 1 - tolerance.max_slowdown
            what = (
                f"the speed-up of at least {least:.0%} of the baseline's at batch {line.batch_size} "
                f"({times(line.speedups.value)} now, {times(then.speedups.value)} then)"
            )
            found, limit = verdict.judge_speedup(*ratio, least), Limit("baseline_speed", least, subject)
            self.judgements.append(limit.judged(what, ratio, found, "{:.0%}".format, line.rounds, "rounds"))
        if why:
            self.notes.append(f"{subject}: {why}, so its speed is not compared.")
        self.changes.append(Change(subject, then, line, difference, ratio))

    def _difference(self, line: Measurement, then: Measurement) -> Figures:
        """Return now minus then in points: row by row where both keep their predictions, else from two intervals."""
        now_rows = _kept(self.lines, line, "predictions", _SAME_ROWS)
        then_rows = _kept(self.older, then, "predictions", _SAME_ROWS)
        gold = _kept([*self.lines, *self.older], line, "gold", _SAME_GOLD)
        metric = metrics_by_name().get(line.metric_name or "")
        is_paired = line.labels == then.labels  # a prediction is the number of a label
        if metric and is_paired and now_rows is not None and then_rows is not None and gold is not None:
            if len(now_rows) == len(then_rows) == len(gold):
                found = paired_difference(now_rows, then_rows, gold, metric=metric, classes=len(line.labels))
                return found.points, found.low, found.high
        # Rows that cannot be paired: two separate intervals are wider.
        bounds = [one.interval("metric") or Interval(0, 0, 0) for one in (line, then)]
        half = 100 * math.hypot(*((one.high - one.low) / 2 for one in bounds))
        difference = line.points_above(then)
        return difference, difference - half, difference + half


def _teacher(lines: Sequence[Measurement], like: Measurement) -> tuple[Any, ...]:
    """Return what decides the speed of the model that a line's speed-up is relative to; weights do not."""
    found = (line for line in lines if line.is_reference and _SAME_RUN(line) == _SAME_RUN(like))
    return next(map(_SAME_SHAPE, found), ())


def _newest(lines: Sequence[Measurement]) -> Measurement:
    """Return the line of the newest run, and of its batch sizes the smallest."""
    return max(lines, key=lambda line: (line.created, -line.batch_size))


def _kept(lines: Sequence[Measurement], like: Measurement, key: str, same: Callable[..., Any]) -> np.ndarray | None:
    found = next((np.asarray(getattr(x, key)) for x in lines if getattr(x, key) and same(x) == same(like)), None)
    return found if found is not None and found.ndim == 1 and found.size and found.dtype.kind in "if" else None


def check(
    results: Sequence[str | Path],
    budgets: Sequence[GateBudget] = (),
    *,
    asked: Sequence[GateBudget] = (),
    baseline: str | Path | None = None,
    against: str | None = None,
    tolerances: Sequence[Tolerance] = (Tolerance(),),
) -> GateVerdict:
    """Judge the results of ``compress benchmark`` by budgets, and compare them with older results.

    A limit holds or is broken only when the whole 95% interval lies on one side of it; else it is undecided.

    Args:
        results: ``.jsonl`` files of ``compress benchmark``.
        budgets: limits, each on the lines that its selectors find; messages number them as a file does.
        asked: more of them, which were options and have no number.
        baseline: older results: a file, or a directory with one file for each host. Quality is compared across hosts,
            speed on the same host only.
        against: the same, as it is in git at ``REF:PATH``.
        tolerances: how far the results may fall behind the older ones.

    Raises:
        CompressError: there is nothing to check, or a budget finds no line.
    """
    every = [*budgets, *asked]
    prefixes = [*(f"budget[{index}]: " for index in range(len(budgets))), *("" for _ in asked)]
    refuse(
        (
            not every and baseline is None and against is None,
            "there is no budget to check; give --budgets FILE, a limit such as --max-accuracy-drop, --baseline or "
            "--against",
        ),
        (
            baseline is not None and against is not None,
            "--baseline and --against are both older results to compare with; give one of them",
        ),
    )
    lines = Results.open(*results)
    rows = lines.configurations
    judgements: list[Judgement] = []
    for budget, prefix in zip(every, prefixes, strict=True):
        chosen = select(budget, rows, prefix=prefix)
        for name, limit in budget.limits().items():
            made = judge_over_seeds(limit, chosen, lines) if budget.over_seeds else _judge_each(name, limit, chosen)
            refuse((not made, f"{prefix}{name} is relative to the teacher in torch, and it selects nothing else"))
            judgements += made
    verdict = GateVerdict(tuple(dict.fromkeys(judgements)), tuple(baselines_within(rows, every)))
    hosts = [line.host_id for line in lines]
    if baseline is not None:
        compared = ReferenceComparison(lines, read_reference(baseline, hosts), str(baseline))
    elif against is not None:
        compared = ReferenceComparison(lines, read_against(against, hosts), against)
    else:
        return verdict
    for tolerance in tolerances:
        compared.judge(select(tolerance, rows, prefix="the baseline: "), tolerance)
    refuse(
        (
            not compared.judgements,
            f"{compared.name} has none of the models in the results; give older results of the same models, or leave "
            "it out",
        )
    )
    # Patterns may select a line twice.
    changes = {(id(change.then), id(change.now)): change for change in compared.changes}
    return GateVerdict(
        tuple(dict.fromkeys((*verdict.judgements, *compared.judgements))),
        tuple(dict.fromkeys((*verdict.notes, *compared.notes))),
        tuple(changes.values()),
        compared.name,
    )


def _judge_each(name: str, limit: Any, chosen: Sequence[Measurement]) -> list[Judgement]:
    named = list(zip(chosen, subjects(chosen), strict=True))
    if name in OF_THE_MODEL:
        named = [same[0] for same in grouped(named, lambda one: ONE_MODEL(one[0])).values()]
    named = [(line, subject) for line, subject in named if not (name in RELATIVE and line.is_reference)]
    if name in OF_PARTS:
        return [one for line, subject in named for one in judge_parts(name, limit, line, subject)]
    return [judge(Limit(name, limit, subject), line) for line, subject in named]
