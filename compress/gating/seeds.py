"""A limit on what a recipe reaches over its training seeds, instead of on one trained model."""

from __future__ import annotations

from collections.abc import Sequence

from compress.gating.judgement import UNDECIDED, VERBS, Judgement
from compress.gating.limits import judged, unknown
from compress.gating.wording import lost, subjects
from compress.measuring import verdict
from compress.measuring.aggregate import Aggregate, aggregate
from compress.measuring.results import Measurement, is_baseline
from compress.reporting.units import in_points

_GATE = "max_accuracy_drop"


def judge_over_seeds(limit: float, chosen: Sequence[Measurement], lines: Sequence[Measurement]) -> list[Judgement]:
    """Judge the mean loss over seeds of every recipe among the chosen lines, with seeds and rows resampled.

    One seed says nothing about another: a recipe with a single one is undecided.
    """
    chosen = [line for line in chosen if not is_baseline(line)]
    sets = {line["data_sha256"] for line in chosen}
    asked = {(line["model"], line["runtime"], line["device"]): line for line in chosen}
    found = []
    for mean in aggregate(line for line in lines if line["data_sha256"] in sets):
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
    return judged(_GATE, limit, figures, found, what, subject, lost, mean.seeds, of)
