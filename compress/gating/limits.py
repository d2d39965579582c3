"""Judge one limit on one result by its 95% interval; size and memory have none and are compared directly."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from compress.benchmarking.results import verdict
from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.files import results_of
from compress.benchmarking.results.formatting import in_percent, in_points, megabytes, milliseconds, plural, times
from compress.benchmarking.results.schema import Measurement
from compress.gating.budgets import GateBudget
from compress.gating.gate_verdict import (
    BROKEN,
    HOLDS,
    UNDECIDED,
    Figures,
    Judgement,
    Limit,
    lost,
    shown_interval,
    subjects,
)
from compress.gating.selectors import is_meant

# Relative to the teacher in torch: of that line itself there is nothing to judge.
RELATIVE = ("max_accuracy_drop", "min_speedup", "min_speedup_with_tokenizer")
# The same for every batch size, thread count and length of a model in a runtime.
OF_THE_MODEL = ("max_accuracy_drop", "min_metric", "max_calibration_error", "max_size")
MORE_EXAMPLES = "more examples would narrow it"
MORE_SEEDS = "more training seeds would narrow it, and more examples"
ONE_MODEL = attrgetter("data_sha256", "host_id", "model", "runtime", "device", "model_sha256")


def as_loss(difference: Figures) -> Figures:
    """Return a difference and its interval as a loss, which is positive where something was lost."""
    value, low, high = difference
    return -value, -high, -low


def _drop(limit: Limit, line: Measurement) -> Judgement:
    what = f"the loss of at most {in_points(limit.value)}"
    found = verdict.judge_drop_of(line, limit.value)
    if found is None or line.difference is None:
        return limit.unknown(what, line, "metric")
    return limit.judged(f"{what} of {line.metric_name}", as_loss(line.difference), found, lost, *line.counted)


def _metric(limit: Limit, line: Measurement) -> Judgement:
    figures = line.interval("metric")
    if figures is None:
        return limit.unknown(f"the metric of at least {limit.value:g}", line, "metric")
    form = "{:.2%}".format if in_percent(line.metric_name) else "{:.4f}".format
    found = verdict.at_least(figures.low, figures.high, limit.value, MORE_EXAMPLES)
    return limit.judged(f"the {line.metric_name} of at least {form(limit.value)}", figures, found, form, *line.counted)


def _calibration(limit: Limit, line: Measurement) -> Judgement:
    what = f"the calibration error of at most {limit.value:g}"
    figures = line.interval("calibration_error")
    if figures is None:
        return limit.unknown(what, line, "probabilities, and so no calibration error")
    found = verdict.at_least(-figures.high, -figures.low, -limit.value, MORE_EXAMPLES)
    return limit.judged(what, figures, found, "{:.3f}".format, *line.counted)


def _speedup(limit: Limit, line: Measurement) -> Judgement:
    key = limit.gate.removeprefix("min_")
    figures = getattr(line, key), getattr(line, f"{key}_low"), getattr(line, f"{key}_high")
    found = verdict.judge_speedup(*figures, limit.value)
    tokenizer = " with the tokenizer" if key != "speedup" else ""
    what = f"the speed-up of at least {times(limit.value)}{tokenizer} at batch {line.batch_size}"
    return limit.judged(what, figures, found, times, line.rounds, "rounds")


def _latency(limit: Limit, line: Measurement) -> Judgement:
    figures = line.latency_p95_ms, line.latency_p95_low_ms, line.latency_p95_high_ms
    found = verdict.at_least(-figures[2], -figures[1], -limit.value, verdict.NARROWER)
    what = f"the p95 latency of at most {milliseconds(limit.value)} at batch {line.batch_size}"
    return limit.judged(what, figures, found, milliseconds, line.rounds, "rounds")


def _exact(limit: Limit, line: Measurement) -> Judgement:
    what, value = ("size", line.size_bytes) if limit.gate == "max_size" else ("memory", line.model_memory_bytes)
    outcome = HOLDS if value <= limit.value else BROKEN
    why = f"{megabytes(value)} ({value:,} bytes, n = 1, no interval)"
    most = megabytes(limit.value) if limit.value >= 1000 else plural(int(limit.value), "byte")
    what = f"the {what} of at most {most}"
    return limit.because(what, outcome, why, value, value, value, 1, "measurement")


# Limit -> what judges a line by it.
JUDGES: Mapping[str, Callable[[Limit, Measurement], Judgement]] = {
    "max_accuracy_drop": _drop,
    "min_metric": _metric,
    "max_calibration_error": _calibration,
    "min_speedup": _speedup,
    "min_speedup_with_tokenizer": _speedup,
    "max_p95_ms": _latency,
    "max_size": _exact,
    "max_memory": _exact,
}


def baselines_within(lines: Sequence[Measurement], budgets: Sequence[GateBudget]) -> list[str]:
    """Say which baselines are, or may be, within the loosest budget of a loss on their data."""
    notes = []
    for line in (row.small_batch for row in results_of(lines) if row.small_batch.kind == "baseline"):
        drops = [
            budget.max_accuracy_drop
            for budget in budgets
            if budget.max_accuracy_drop is not None and is_meant(line, "data", budget.data)
        ]
        notes += [_note(line, max(drops))] if drops else []
    return list(dict.fromkeys(filter(None, notes)))


def _note(baseline: Measurement, budget: float) -> str:
    found = verdict.judge_drop_of(baseline, budget)
    if found is None or baseline.difference is None:
        return ""
    if found.outcome == verdict.WORSE or baseline.difference.value < -budget:
        return ""
    loss, low, high = as_loss(baseline.difference)
    count, of = baseline.counted
    return (
        f"A baseline {'is' if found.outcome == verdict.WITHIN else 'may be'} within the budget of "
        f"{in_points(budget)} of {baseline.metric_name}, fitted on gold labels only: {baseline.model}, "
        f"{lost(loss)} on {count:,} {of} ({shown_interval(lost, low, high)})."
    )


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
    what = f"the mean loss over seeds of at most {in_points(limit)}"
    rest = list(asked.values())
    return found + [
        Limit("max_accuracy_drop", limit, subject).unknown(what, line, "metric")
        for line, subject in zip(rest, subjects(rest), strict=True)
    ]


def _judge_mean(budget: float, mean: Aggregate) -> Judgement:
    subject = f"{mean.name} in {mean.runtime}" + (f", on {mean.device}" if mean.device != "cpu" else "")
    limit = Limit("max_accuracy_drop", budget, subject)
    what = f"the mean loss over seeds of at most {in_points(budget)} of {mean.metric_name}"
    if mean.low is None or mean.high is None or mean.seeds < 2:
        loss = -mean.difference_points
        why = "; ".join(mean.notes) or f"there is {mean.seeds} training seed, and a mean needs two or more"
        why = f"{lost(loss)} on {mean.rows:,} examples, but {why}"
        return limit.because(what, UNDECIDED, why, loss, count=mean.seeds, of="seeds")
    figures = mean.difference_points, mean.low, mean.high
    found = verdict.at_least(mean.low, mean.high, -budget, MORE_SEEDS)
    return limit.judged(what, as_loss(figures), found, lost, mean.seeds, f"seeds and {mean.rows:,} examples")
