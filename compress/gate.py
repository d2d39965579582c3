"""Stage: decide whether results hold their budgets, and say when they cannot decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compress.errors import CompressError, did_you_mean
from compress.measuring.results import Measurement, is_baseline, read_results, rows_of
from compress.metrics import find_metric, paired_difference
from compress.reporting.units import megabytes, points, times

HOLDS, BROKEN, UNDECIDED = "holds", "broken", "undecided"
EXIT_CODES = {HOLDS: 0, BROKEN: 1, UNDECIDED: 3}
BASELINE_DROP_POINTS = 1.0
BASELINE_SLOWDOWN = 0.10
SAME_MODEL = ("data_sha256", "metric_name", "model", "runtime", "device")


@dataclass(frozen=True)
class Judgement:
    """One gate on one model: ``outcome`` is ``holds``, ``broken`` or ``undecided``."""

    gate: str
    subject: str
    outcome: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """Every judgement, and what was left out."""

    judgements: tuple[Judgement, ...]
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """``broken`` if any gate is, else ``undecided`` if any is, else ``holds``."""
        outcomes = {judgement.outcome for judgement in self.judgements}
        return next((one for one in (BROKEN, UNDECIDED) if one in outcomes), HOLDS)

    @property
    def exit_code(self) -> int:
        """0 holds, 1 broken, 3 cannot decide."""
        return EXIT_CODES[self.outcome]

    @property
    def sentences(self) -> list[str]:
        return [judgement.sentence for judgement in self.judgements]

    def markdown(self) -> str:
        """Return the verdict for a pull request or ``$GITHUB_STEP_SUMMARY``."""
        marks = {HOLDS: "✅", BROKEN: "❌", UNDECIDED: "❔"}
        rows = [f"* {marks[j.outcome]} {_plain(j.sentence)}" for j in self.judgements]
        notes = [f"* {_plain(note)}" for note in self.notes]
        return "\n".join([f"## compress check: {self.outcome}", "", *rows, *notes, ""])


def check(
    results: Sequence[str | Path],
    *,
    max_accuracy_drop: float | None = None,
    min_speedup: float | None = None,
    max_size_bytes: int | None = None,
    baseline: str | Path | None = None,
    models: Sequence[str] = (),
    runtimes: Sequence[str] = (),
    batch_size: int | None = None,
    max_baseline_drop: float = BASELINE_DROP_POINTS,
    max_baseline_slowdown: float = BASELINE_SLOWDOWN,
) -> Verdict:
    """Judge every model that is neither teacher nor control against the budgets.

    A gate holds or is broken only when the whole 95% interval lies on one side of its budget; else it is undecided.

    Args:
        results: ``.jsonl`` files of ``compress benchmark``.
        max_accuracy_drop: points of the metric that a model may lose to the teacher; by the paired interval.
        min_speedup: against the teacher in torch; by the interval of the ratio.
        max_size_bytes: of the weights on disk; exact.
        baseline: older results: the metric may drop by ``max_baseline_drop`` points and, on the same host only, the
            speed-up by the share ``max_baseline_slowdown``.
        models, runtimes: judge only these; a control or the teacher is judged when named.
        batch_size: of the speed-up; default the smallest that was measured.

    Raises:
        CompressError: no budget is given, one is out of range, or nothing is left to judge.
    """
    _check_budgets(max_accuracy_drop, min_speedup, max_size_bytes, baseline, max_baseline_drop, max_baseline_slowdown)
    lines = read_results(results)
    chosen = _chosen(lines, models, runtimes, batch_size)
    judgements: list[Judgement] = []
    notes: list[str] = []
    for line in chosen:
        if max_accuracy_drop is not None:
            judgements.append(_judge_drop(line, max_accuracy_drop))
        if min_speedup is not None:
            judgements.append(_judge_speedup(line, min_speedup))
        if max_size_bytes is not None:
            judgements.append(_judge_size(line, max_size_bytes))
    if baseline is not None:
        old = [line for row in rows_of(read_results([baseline])) for line in row.lines]  # the newest of each
        compared = _judge_baseline(chosen, lines, old, max_baseline_drop, max_baseline_slowdown, notes)
        if not compared:
            raise CompressError(
                f"{baseline} has no line for {', '.join(dict.fromkeys(x['model'] for x in chosen))} on the same data; "
                "give results of the same models, or leave --baseline out"
            )
        judgements += compared
    return Verdict(tuple(judgements), tuple(notes))


def _check_budgets(
    drop: float | None, speedup: float | None, size: int | None, baseline: object, old_drop: float, slowdown: float
) -> None:
    if drop is None and speedup is None and size is None and baseline is None:
        raise CompressError(
            "there is no budget to check; give --max-accuracy-drop, --min-speedup, --max-size or --baseline"
        )
    for option, value in (("--max-accuracy-drop", drop), ("--max-baseline-drop", old_drop)):
        if value is not None and not 0 <= value <= 100:
            raise CompressError(f"{option} {value} is not a number of percentage points; use 0 to 100, such as 1.0")
    if speedup is not None and not 0 < speedup < math.inf:
        raise CompressError(f"--min-speedup {speedup} is not a ratio; use a number above 0, such as 5 for five times")
    if size is not None and size <= 0:
        raise CompressError(f"--max-size {size} is not a size; use a number of bytes above 0")
    if not 0 <= slowdown < 1:
        raise CompressError(f"--max-baseline-slowdown {slowdown} is not a share; use 0 to below 1, such as 0.1")


def _chosen(
    lines: Sequence[Measurement], models: Sequence[str], runtimes: Sequence[str], batch_size: int | None
) -> list[Measurement]:
    """Return one line for each configuration to judge, at the asked batch size."""
    for option, asked, key in (("--model", models, "model"), ("--runtime", runtimes, "runtime")):
        there = list(dict.fromkeys(str(line[key]) for line in lines))
        for name in asked:
            if name not in there:
                raise CompressError(
                    f"{option} {name!r} is not in the results; there is {', '.join(there)}.{did_you_mean(name, there)}"
                )
    rows = [row for row in rows_of(lines) if not is_baseline(row.head)]
    rows = [r for r in rows if (r.head["model"] in models if models else r.head["kind"] == "model")]
    rows = [r for r in rows if not runtimes or r.head["runtime"] in runtimes]
    if not rows:
        raise CompressError("the results hold no model to judge, only teachers and controls; name one with --model")
    if batch_size is None:
        return [row.head for row in rows]
    found = [line for row in rows for line in row.lines if line["batch_size"] == batch_size]
    if not found:
        sizes = sorted({line["batch_size"] for line in lines})
        raise CompressError(f"--batch-size {batch_size} was not measured; there is {', '.join(map(str, sizes))}")
    return found


def _subject(line: Measurement) -> str:
    threads = f" with {line['threads']} threads" if line["threads"] > 1 else ""
    return f"{line['model']} in {line['runtime']}{threads}{' on cuda' if line['device'] == 'cuda' else ''}"


def _side(low: float, high: float, limit: float) -> str:
    """Say where the interval of something that should stay below a limit lies."""
    return HOLDS if high <= limit else BROKEN if low > limit else UNDECIDED


_VERBS = {HOLDS: "holds", BROKEN: "is broken", UNDECIDED: "cannot be decided"}


def _judge_drop(line: Measurement, budget: float) -> Judgement:
    drop = -line["difference_points"]
    low, high = -line["difference_high"], -line["difference_low"]
    outcome = _side(low, high, budget)
    more = ""
    if outcome == UNDECIDED:
        more = _examples_needed(line["metric_rows"], abs(budget - drop), (high - drop if drop < budget else drop - low))
    sentence = (
        f"{_subject(line)}: the budget of {budget:g} points of {line['metric_name']} {_VERBS[outcome]}: "
        f"{_lost(drop)} on {line['metric_rows']:,} examples (95% interval {_lost(low)} to {_lost(high)}){more}."
    )
    return Judgement("max-accuracy-drop", _subject(line), outcome, sentence)


def _lost(drop: float) -> str:
    return f"{points(drop).lstrip('+−')} {'lost' if drop >= 0 else 'won'}"


def _examples_needed(rows: int, margin: float, half_width: float) -> str:
    """Say how many more examples would decide, if the difference stays what it is: widths shrink as 1/sqrt(N)."""
    if margin <= 0.01 * half_width:
        return "; the loss is the budget, so more examples will hardly decide"
    more = rows * (half_width / margin) ** 2 - rows
    step = 10 ** max(0, math.floor(math.log10(max(more, 1))) - 1)
    return f"; about {math.ceil(round(more / step, 6)) * step:,} more examples would decide"


def _judge_speedup(line: Measurement, budget: float) -> Judgement:
    value, low, high = (line[key] for key in ("speedup", "speedup_low", "speedup_high"))
    outcome = HOLDS if low >= budget else BROKEN if high < budget else UNDECIDED
    sentence = (
        f"{_subject(line)}: the speed-up of ×{budget:g} or more {_VERBS[outcome]}: {times(value)} at batch "
        f"{line['batch_size']} (95% interval {times(low)} to {times(high)})"
        + ("; measure on a quieter machine or with more --rounds." if outcome == UNDECIDED else ".")
    )
    return Judgement("min-speedup", _subject(line), outcome, sentence)


def _judge_size(line: Measurement, budget: int) -> Judgement:
    outcome = HOLDS if line["size_bytes"] <= budget else BROKEN
    sentence = (
        f"{_subject(line)}: the size of at most {megabytes(budget)} {_VERBS[outcome]}: "
        f"its weights are {megabytes(line['size_bytes'])}."
    )
    return Judgement("max-size", _subject(line), outcome, sentence)


def _judge_baseline(
    chosen: Iterable[Measurement],
    lines: Sequence[Measurement],
    old: Sequence[Measurement],
    drop: float,
    slowdown: float,
    notes: list[str],
) -> list[Judgement]:
    found = []
    for line in chosen:
        before = [other for other in old if _alike(other, line, SAME_MODEL)]
        if not before:
            notes.append(f"{_subject(line)} is not in the baseline, so it is not compared.")
            continue
        found.append(_judge_old_metric(line, before[0], lines, old, drop))
        like = [other for other in before if _alike(other, line, ("host_id", "threads", "batch_size"))]
        if like:
            found.append(_judge_old_speed(line, like[0], slowdown))
        else:
            notes.append(
                f"{_subject(line)}: the baseline was measured on another host or with other settings, "
                "so its speed is not compared."
            )
    return found


def _alike(first: Measurement, second: Measurement, keys: Sequence[str]) -> bool:
    return all(first[key] == second[key] for key in keys)


def _judge_old_metric(
    line: Measurement, before: Measurement, lines: Sequence[Measurement], old: Sequence[Measurement], budget: float
) -> Judgement:
    drop = 100 * (before["metric"] - line["metric"])
    rows = _paired_rows(line, before, lines, old)
    if rows is not None and line["metric_name"] == before["metric_name"]:
        metric = find_metric(line["metric_name"], task="regression" if rows[2].dtype.kind == "f" else "classification")
        classes = int(max(part.max() for part in rows)) + 1
        difference = paired_difference(*rows, metric=metric, classes=classes)
        low, high = -difference.high, -difference.low
    else:
        # Without predictions the rows cannot be paired; two separate intervals are wider.
        half = 100 * math.hypot(*((x["metric_high"] - x["metric_low"]) / 2 for x in (line, before)))
        low, high = drop - half, drop + half
    outcome = _side(low, high, budget)
    sentence = (
        f"{_subject(line)}: against the baseline, {budget:g} points of {line['metric_name']} {_VERBS[outcome]}: "
        f"{_lost(drop)} (95% interval {_lost(low)} to {_lost(high)})."
    )
    return Judgement("baseline-drop", _subject(line), outcome, sentence)


def _paired_rows(
    line: Measurement, before: Measurement, lines: Sequence[Measurement], old: Sequence[Measurement]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the predictions now, the predictions then and the gold labels, where the files keep them."""
    now = _kept(lines, line, "predictions", SAME_MODEL)
    then = _kept(old, before, "predictions", SAME_MODEL)
    gold = _kept(lines, line, "gold", ("data_sha256",))
    if now is None or then is None or gold is None or not len(now) == len(then) == len(gold):
        return None
    return now, then, gold


def _kept(lines: Sequence[Measurement], like: Measurement, key: str, same: Sequence[str]) -> np.ndarray | None:
    values = (x[key] for x in lines if key in x and _alike(x, like, same))
    found = next(values, None)
    return None if found is None else np.asarray(found)


def _judge_old_speed(line: Measurement, before: Measurement, budget: float) -> Judgement:
    """Compare two speed-ups of separate runs: their intervals add up as independent errors of the logarithm."""
    ratio = line["speedup"] / before["speedup"]
    half = math.hypot(*(math.log(x["speedup_high"] / x["speedup_low"]) / 2 for x in (line, before)))
    low, high = ratio * math.exp(-half), ratio * math.exp(half)
    outcome = HOLDS if low >= 1 - budget else BROKEN if high < 1 - budget else UNDECIDED
    sentence = (
        f"{_subject(line)}: against the baseline, at most {budget:.0%} slower {_VERBS[outcome]}: "
        f"{times(line['speedup'])} now, {times(before['speedup'])} then, "
        f"a ratio of {ratio:.2f} (95% interval {low:.2f} to {high:.2f})."
    )
    return Judgement("baseline-speed", _subject(line), outcome, sentence)


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("`", "\\`")
