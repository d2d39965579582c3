"""One limit on one measured line. The 95% interval decides; a size, which has none, decides by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compress.gating.judgement import BROKEN, HOLDS, UNDECIDED, VERBS, Figures, Judgement
from compress.gating.wording import interval, lost
from compress.measuring import verdict
from compress.measuring.results import Measurement, is_baseline
from compress.reporting.units import in_percent, in_points, megabytes, milliseconds, times

OUTCOMES = {verdict.WITHIN: HOLDS, verdict.WORSE: BROKEN, verdict.UNDECIDED: UNDECIDED}
# Relative to the teacher in torch: of that line itself there is nothing to judge.
RELATIVE = ("max_accuracy_drop", "min_speedup", "min_speedup_with_tokenizer")
# The same for every batch size, thread count and length of a model in a runtime.
OF_THE_MODEL = ("max_accuracy_drop", "min_metric", "max_calibration_error", "max_size")
_ONE_TURN = ("data_sha256", "host_id", "created", "device", "threads", "batch_size", "length")
_ONE_MODEL = ("data_sha256", "host_id", "model", "runtime", "device", "model_sha256")


def first_of_its_model(line: Measurement, seen: set[tuple[object, ...]]) -> bool:
    """Tell whether no line of this model in this runtime was seen before, and remember it."""
    key = tuple(line[name] for name in _ONE_MODEL)
    is_first = key not in seen
    seen.add(key)
    return is_first


def with_worst_noise(line: Measurement, lines: Sequence[Measurement]) -> Measurement:
    """Return a line that is as noisy as the noisier side of its speed-up: itself or the teacher in the same run."""
    same = [x for x in lines if is_baseline(x) and all(x[key] == line[key] for key in _ONE_TURN)]
    return {**line, "noise": max(x["noise"] for x in (line, *same))}


def judge(name: str, limit: float, line: Measurement, subject: str) -> Judgement | None:
    """Judge a line by the limit of that name; None where the line is what the limit is relative to."""
    if name in RELATIVE and is_baseline(line):
        return None
    return _JUDGES[name](name, limit, line, subject)


def _drop(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    what = f"the loss of at most {in_points(limit)} of {line['metric_name']}"
    difference = figures_of(line, "difference_points", "difference")
    if difference is None:
        return unknown(gate, limit, line, subject, f"the loss of at most {in_points(limit)}", "metric")
    found = verdict.judge_drop_of(line, limit)
    figures = -difference[0], -difference[2], -difference[1]
    return judged(gate, limit, figures, found, what, subject, lost, line["metric_rows"], "examples")


def _metric(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    def form(value: float) -> str:
        return f"{100 * value:.2f}%" if in_percent(line["metric_name"]) else f"{value:.4f}"

    figures = figures_of(line, "metric", "metric")
    if figures is None:
        return unknown(gate, limit, line, subject, f"the metric of at least {limit:g}", "metric")
    found = _at_most(-figures[2], -figures[1], -limit)
    what = f"the {line['metric_name']} of at least {form(limit)}"
    return judged(gate, limit, figures, found, what, subject, form, line["metric_rows"], "examples")


def _calibration(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    what = f"the calibration error of at most {limit:g}"
    figures = figures_of(line, "calibration_error", "calibration_error")
    if figures is None:
        return unknown(gate, limit, line, subject, what, "probabilities, and so no calibration error")
    found = _at_most(figures[1], figures[2], limit)
    return judged(gate, limit, figures, found, what, subject, "{:.3f}".format, line["metric_rows"], "examples")


def _speedup(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    key = gate.removeprefix("min_")
    figures = line[key], line[f"{key}_low"], line[f"{key}_high"]
    found = verdict.judge_speedup(*figures, limit, line["noisy"], line["noise"])
    tokenizer = " with the tokenizer" if key != "speedup" else ""
    what = f"the speed-up of at least {times(limit)}{tokenizer} at batch {line['batch_size']}"
    return judged(gate, limit, figures, found, what, subject, times, line["rounds"], "rounds")


def _latency(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    figures = line["latency_p95_ms"], line["latency_p95_low_ms"], line["latency_p95_high_ms"]
    found = verdict.judge_latency_p95(*figures, limit, line["noisy"], line["noise"])
    what = f"the p95 latency of at most {milliseconds(limit)} at batch {line['batch_size']}"
    return judged(gate, limit, figures, found, what, subject, milliseconds, line["rounds"], "rounds")


def _size(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    return _exact(gate, limit, line["size_bytes"], f"the size of at most {megabytes(limit)}", subject)


def _memory(gate: str, limit: float, line: Measurement, subject: str) -> Judgement:
    return _exact(gate, limit, line["model_memory_bytes"], f"the memory of at most {megabytes(limit)}", subject)


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
    count: int,
    of: str,
) -> Judgement:
    """Put a verdict into a judgement: ``what`` is the limit in words, ``figures`` a value and its 95% interval."""
    outcome = OUTCOMES[found.outcome]
    value, low, high = figures
    why = f"; {found.sentence.removeprefix('undecided: ')}" if outcome == UNDECIDED and found.sentence else ""
    over = f"{'over' if of == 'rounds' else 'on'} {count:,} {of}"
    sentence = f"{subject}: {what} {VERBS[outcome]}: {form(value)} {over} ({interval(form, low, high)}){why}."
    return Judgement(gate, subject, outcome, sentence, limit, value, low, high, count, of)


def unknown(gate: str, limit: float, line: Measurement, subject: str, what: str, missing: str) -> Judgement:
    """Judge a line that lacks what the limit is about: it cannot be decided, and is never passed in silence."""
    sentence = f"{subject}: {what} {VERBS[UNDECIDED]}: the {line['kind']} has no {missing}."
    return Judgement(gate, subject, UNDECIDED, sentence, limit, None, None, None, line["metric_rows"], "examples")


def figures_of(line: Measurement, key: str, prefix: str) -> Figures | None:
    """Return a value and its interval; None where the line has not all of them."""
    found = line[key], line[f"{prefix}_low"], line[f"{prefix}_high"]
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
