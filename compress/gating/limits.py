"""Judge one limit on one result by its 95% interval; size and memory have none and are compared directly."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compress.benchmarking.results import verdict
from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.files import results_of
from compress.benchmarking.results.formatting import in_percent, in_points, megabytes, milliseconds, times
from compress.benchmarking.results.schema import Measurement
from compress.gating.budgets import GateBudget
from compress.gating.gate_verdict import (
    BROKEN,
    HOLDS,
    UNDECIDED,
    VERBS,
    Figures,
    Judgement,
    lost,
    shown_interval,
    subjects,
)

OUTCOMES = {verdict.WITHIN: HOLDS, verdict.WORSE: BROKEN, verdict.UNDECIDED: UNDECIDED}
# Relative to the teacher in torch: of that line itself there is nothing to judge.
RELATIVE = ("max_accuracy_drop", "min_speedup", "min_speedup_with_tokenizer")
# The same for every batch size, thread count and length of a model in a runtime.
OF_THE_MODEL = ("max_accuracy_drop", "min_metric", "max_calibration_error", "max_size")
_ONE_TURN = ("data_sha256", "host_id", "created", "device", "threads", "batch_size", "length")
_ONE_MODEL = ("data_sha256", "host_id", "model", "runtime", "device", "model_sha256")


def first_of_its_model(line: Measurement, seen: set[tuple[object, ...]]) -> bool:
    """Tell whether no line of this model in this runtime was seen before, and remember it."""
    key = tuple(getattr(line, name) for name in _ONE_MODEL)
    is_first = key not in seen
    seen.add(key)
    return is_first


def with_worst_noise(line: Measurement, lines: Sequence[Measurement]) -> Measurement:
    """Return a line that is as noisy as the noisier side of its speed-up: itself or the teacher in the same run."""
    same = [x for x in lines if x.is_reference and all(getattr(x, key) == getattr(line, key) for key in _ONE_TURN)]
    return replace(line, noise=max(x.noise for x in (line, *same)))


def judge_budget(name: str, limit: float, line: Measurement, subject: str) -> Judgement | None:
    """Judge a line by the limit of that name; None where the line is what the limit is relative to."""
    if name in RELATIVE and line.is_reference:
        return None
    return _JUDGES[name](name, limit, line, subject)


def _drop(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    what = f"the loss of at most {in_points(limit)} of {line.metric_name}"
    difference = figures_of(line, "difference_points", "difference")
    if difference is None:
        return unknown(gate, limit, line, subject, f"the loss of at most {in_points(limit)}", "metric")
    found = verdict.judge_drop_of(line, limit)
    figures = -difference[0], -difference[2], -difference[1]
    return judged(gate, limit, figures, found, what, subject, lost, (line.metric_rows, "examples"))


def _metric(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    def form(value: float) -> str:
        return f"{100 * value:.2f}%" if in_percent(line.metric_name) else f"{value:.4f}"

    figures = figures_of(line, "metric", "metric")
    if figures is None:
        return unknown(gate, limit, line, subject, f"the metric of at least {limit:g}", "metric")
    found = _at_most(-figures[2], -figures[1], -limit)
    what = f"the {line.metric_name} of at least {form(limit)}"
    return judged(gate, limit, figures, found, what, subject, form, (line.metric_rows, "examples"))


def _calibration(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    what = f"the calibration error of at most {limit:g}"
    figures = figures_of(line, "calibration_error", "calibration_error")
    if figures is None:
        return unknown(gate, limit, line, subject, what, "probabilities, and so no calibration error")
    found = _at_most(figures[1], figures[2], limit)
    return judged(gate, limit, figures, found, what, subject, "{:.3f}".format, (line.metric_rows, "examples"))


def _speedup(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    key = gate.removeprefix("min_")
    figures = getattr(line, key), getattr(line, f"{key}_low"), getattr(line, f"{key}_high")
    found = verdict.judge_speedup(*figures, limit, line.noisy, line.noise)
    tokenizer = " with the tokenizer" if key != "speedup" else ""
    what = f"the speed-up of at least {times(limit)}{tokenizer} at batch {line.batch_size}"
    return judged(gate, limit, figures, found, what, subject, times, (line.rounds, "rounds"))


def _latency(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    figures = line.latency_p95_ms, line.latency_p95_low_ms, line.latency_p95_high_ms
    found = verdict.judge_latency_p95(*figures, limit, line.noisy, line.noise)
    what = f"the p95 latency of at most {milliseconds(limit)} at batch {line.batch_size}"
    return judged(gate, limit, figures, found, what, subject, milliseconds, (line.rounds, "rounds"))


def _size(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    return _exact(gate, limit, line.size_bytes, f"the size of at most {megabytes(limit)}", subject)


def _memory(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    return _exact(gate, limit, line.model_memory_bytes, f"the memory of at most {megabytes(limit)}", subject)


def _exact(gate: str, limit: float, value: int, what: str, subject: str) -> Judgement:
    outcome = HOLDS if value <= limit else BROKEN
    sentence = f"{subject}: {what} {VERBS[outcome]}: {megabytes(value)} ({value:,} bytes, n = 1, no interval)."
    return Judgement(gate, subject, outcome, sentence, limit, value, value, value, 1, "measurement")


def judged(
    gate: str,
    limit: float,
    figures: Figures,
    found: verdict.Verdict,
    what: str,
    subject: str,
    form: Callable[[float], str],
    sample: tuple[int, str],
) -> Judgement:
    """Put a verdict into a judgement.

    ``what`` is the limit in words, ``figures`` a value and its 95% interval, ``sample`` how many of what it is from.
    """
    outcome = OUTCOMES[found.outcome]
    value, low, high = figures
    count, of = sample
    why = f"; {found.sentence.removeprefix('undecided: ')}" if outcome == UNDECIDED and found.sentence else ""
    over = f"{'over' if of == 'rounds' else 'on'} {count:,} {of}"
    sentence = f"{subject}: {what} {VERBS[outcome]}: {form(value)} {over} ({shown_interval(form, low, high)}){why}."
    return Judgement(gate, subject, outcome, sentence, limit, value, low, high, count, of)


def unknown(gate: str, limit: float, line: Measurement, subject: str, what: str, missing: str) -> Judgement:
    """Judge a line that lacks what the limit is about: it cannot be decided, and is never passed in silence."""
    sentence = f"{subject}: {what} {VERBS[UNDECIDED]}: the {line.kind} has no {missing}."
    return Judgement(gate, subject, UNDECIDED, sentence, limit, None, None, None, line.metric_rows, "examples")


def figures_of(line: Measurement, key: str, prefix: str) -> Figures | None:
    """Return a value and its interval; None where the line has not all of them."""
    found = getattr(line, key), getattr(line, f"{prefix}_low"), getattr(line, f"{prefix}_high")
    return None if None in found else found


def _at_most(low: float, high: float, limit: float) -> verdict.Verdict:
    outcome = verdict.WITHIN if high <= limit else verdict.WORSE if low > limit else verdict.UNDECIDED
    return verdict.Verdict(outcome, "more examples would narrow it")


_JUDGES: Mapping[str, Callable[[str, float, Measurement, str], Judgement]] = {
    "max_accuracy_drop": _drop,
    "min_metric": _metric,
    "max_calibration_error": _calibration,
    "min_speedup": _speedup,
    "min_speedup_with_tokenizer": _speedup,
    "max_p95_ms": _latency,
    "max_size": _size,
    "max_memory": _memory,
}


def baselines_within(lines: Sequence[Measurement], budgets: Sequence[GateBudget]) -> list[str]:
    """Say which baselines are, or may be, within the loosest budget of a loss."""
    drops = [budget.max_accuracy_drop for budget in budgets if budget.max_accuracy_drop is not None]
    baselines = [row.small_batch for row in results_of(lines) if row.small_batch.kind == "baseline"]
    notes = [_note(baseline, max(drops)) for baseline in baselines if drops]
    return list(dict.fromkeys(note for note in notes if note))


def _note(baseline: Measurement, budget: float) -> str:
    difference = figures_of(baseline, "difference_points", "difference")
    if difference is None:
        return ""
    found = verdict.judge_drop_of(baseline, budget)
    if found.outcome == verdict.WORSE or difference[0] < -budget:
        return ""
    return (
        f"A baseline {'is' if found.outcome == verdict.WITHIN else 'may be'} within the budget of "
        f"{in_points(budget)} of {baseline.metric_name}, fitted on gold labels only: {baseline.model}, "
        f"{lost(-difference[0])} on {baseline.metric_rows:,} examples "
        f"({shown_interval(lost, -difference[2], -difference[1])})."
    )


_GATE = "max_accuracy_drop"


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
            found.append(_judge(limit, mean))
        asked = {key: line for key, line in asked.items() if key not in members}
    what = f"the mean loss over seeds of at most {in_points(limit)}"
    names = subjects(list(asked.values()))
    return found + [unknown(_GATE, limit, line, names[id(line)], what, "metric") for line in asked.values()]


def _judge(limit: float, mean: Aggregate) -> Judgement:
    subject = f"{mean.name} in {mean.runtime}" + (f", on {mean.device}" if mean.device != "cpu" else "")
    what = f"the mean loss over seeds of at most {in_points(limit)} of {mean.metric_name}"
    if mean.low is None or mean.high is None or mean.seeds < 2:
        why = "; ".join(mean.notes) or f"there is {mean.seeds} training seed, and a mean needs two or more"
        measured = f"{lost(-mean.difference_points)} on {mean.rows:,} examples, but {why}"
        sentence = f"{subject}: {what} {VERBS[UNDECIDED]}: {measured}."
        value = -mean.difference_points
        return Judgement(_GATE, subject, UNDECIDED, sentence, limit, value, None, None, mean.seeds, "seeds")
    found = verdict.judge_drop(mean.difference_points, mean.low, mean.high, limit, mean.rows)
    figures = -mean.difference_points, -mean.high, -mean.low
    of = f"seeds and {mean.rows:,} examples"
    return judged(_GATE, limit, figures, found, what, subject, lost, (mean.seeds, of))
