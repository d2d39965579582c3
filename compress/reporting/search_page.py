"""Report of ``compress search``: what was found and how certain it is, the front as it grew, and all that was tried."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import (
    in_points,
    megabytes,
    metric_title,
    milliseconds,
    plural,
    points,
    shown,
    span,
    times,
    with_span,
)
from compress.evaluation.pareto import non_dominated
from compress.inference.speedup_intervals import Interval
from compress.progress import duration
from compress.reporting.pages import EMPTY, Cell, ReportTable, StagePage, integer, number, quality
from compress.reporting.svg import Picture, Series, line_chart

FASTER = "times as fast as the teacher"
# What rule chose the winner; they are those of compress.searching.selection.
RULES = {
    "speed": "The fastest student within the budget",
    "metric": "The best student within the budget",
    "knee": "The knee of the front, as nothing was asked",
}


def search_page(found: Mapping[str, Any]) -> StagePage:
    contents = [_front(found)] if found["front"] else []
    contents += [_tried(found)] if any(row["speedup"] for row in found["trials"]) else []
    title = f"Students of {found['teacher']} within a budget"
    return StagePage(title, found["command"] or "compress search", verdict(found), contents, found["again"])


def verdict(found: Mapping[str, Any]) -> list[str]:
    """Return what was asked, found and measured, a sentence each."""
    trained = sum(bool(row["rungs"]) for row in found["trials"])
    winner, joined = _row(found, "winner"), found["cascade"]
    sentences = [
        f"Asked for: {found['asked']}. {plural(len(found['trials']), 'shape')} timed, {trained} trained, in "
        f"{duration(found['seconds'])}.",
        _missed(found) if winner is None else _won(found, winner),
    ]
    if joined is not None:
        chosen = "It was chosen among thousands on validation rows, so that their figure is optimistic."
        return [*sentences, _joined(found, joined), _on_test(found, chosen)]
    chosen = f"It was chosen among {plural(trained, 'candidate')} on validation rows, so that their figure is "
    return sentences if winner is None else [*sentences, _on_test(found, f"{chosen}optimistic by selection.")]


def _won(found: Mapping[str, Any], winner: Mapping[str, Any]) -> str:
    share, why = winner["rungs"][-1]["share"], winner["ended"].partition(": ")[2] or "the time was over"
    steps = "" if share == 1 else f" (trained for {share:.0%} of its steps: {why})"
    certainty = f", {found['certainty']}" if found["certainty"] else ""
    rule = "knee" if not found["budget"] else "speed" if "max_accuracy_drop" in found["budget"] else "metric"
    return (
        f"{RULES[rule]}: {winner['name']}{steps}. {with_span(_speed(winner), times)} as fast as the teacher in "
        f"torch on {plural(found['threads'], 'thread')}, {milliseconds(winner['latency_ms'])} a row, "
        f"{_figures(found, winner)}{certainty}."
    )


def _figures(found: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    metric, rows = found["metric"], found["rows"]["validation"]
    return (
        f"{megabytes(one['size_bytes'])}. {metric.capitalize()} {shown(one['value'], metric)} on {rows:,} "
        f"validation rows, {_difference(one)} to the teacher"
    )


def _joined(found: Mapping[str, Any], joined: Mapping[str, Any]) -> str:
    answers = [f"{name} {share:.1%}" for name, share in zip(joined["members"], joined["answered"], strict=True)]
    alone = "Faster is a cascade" if found["winner"] else "A cascade meets it"
    return (
        f"{alone}, which is DIR/best: of the rows each answers {'; '.join(answers)}. It is about "
        f"{times(joined['speedup'])} as fast as the teacher in torch in the mean, by the typical times of each, "
        f"{milliseconds(joined['latency_ms'])} a row, {_figures(found, joined)}. Rows "
        "that the last member answers take as long as all members together."
    )


def _on_test(found: Mapping[str, Any], chosen: str) -> str:
    """Return how the winner was chosen and what it is worth on test rows, if there are any."""
    test, metric, left_out = found["test"], found["metric"], ""
    if test is None:
        return f"{chosen} There is no unbiased figure: give rows that take no part with --test FILE."
    if found["left_out"]:
        left_out = (
            f" {plural(found['left_out'], 'row')} of its training text were left out as rows of --validation or "
            "--test; the commands that make it again do not read --test."
        )
    return (
        f"{chosen} On {test['rows']:,} test rows that took no part it has {metric} {shown(test['value'], metric)}, "
        f"{_difference(test)} to the teacher, and is {with_span(Interval(**test['speedup']), times)} as fast."
        f"{_held(found['budget'], test)}{left_out}"
    )


def _held(budget: Mapping[str, float], test: Mapping[str, Any]) -> str:
    """Say whether the allowed drop and the asked speed-up hold on test rows; nothing where none was given."""
    said, allowed = "", budget.get("max_accuracy_drop")
    if allowed is not None:
        limit, side = in_points(allowed), "within" if test["points"] >= -allowed else "beyond"
        said = f" That is {side} {limit}, not certain with {test['rows']:,} rows."
        if test["low"] >= -allowed:
            said = f" That is certainly within {limit}."
        elif test["high"] < -allowed:
            said = f" That is certainly beyond {limit}: the budget is not met."
    if test["speedup"]["high"] < (asked := budget.get("min_speedup", 0)):
        said += f" It is certainly slower than the {times(asked)} that was asked: the budget is not met."
    if test["latency_ms"]["low"] > (most := budget.get("max_latency_ms", math.inf)):
        said += f" It certainly takes longer than the {most:g} ms that were asked: the budget is not met."
    return said


def _missed(found: Mapping[str, Any]) -> str:
    near = _row(found, "closest")
    if near is not None and near["rungs"]:
        return (
            f"No student met it. The closest is {near['name']}: {_difference(near)} to the teacher on validation rows, "
            f"{with_span(_speed(near), times)} as fast, {megabytes(near['size_bytes'])}."
        )
    if near is not None:
        return f"None was trained. In speed and size the closest is {near['name']}: {near['ended']}."
    if found["trials"]:
        return f"No shape could be timed. The first {found['trials'][0]['ended']}."
    return "No shape was timed: the time was over before."


def _row(found: Mapping[str, Any], which: str) -> Mapping[str, Any] | None:
    return next((row for row in found["trials"] if row["trial"] == found[which]), None)


def _speed(row: Mapping[str, Any]) -> Interval:
    return Interval(row["speedup"], row["low_speedup"], row["high_speedup"])


def _difference(row: Mapping[str, Any]) -> str:
    return f"{points(row['points'])} points ({span(points(row['low']), points(row['high']))})"


def _front(found: Mapping[str, Any]) -> ReportTable:
    series, winner = [], _row(found, "winner")
    rungs = [(_drawn(row), rung) for row in found["trials"] for rung in row["rungs"]]
    for share in found["rungs"]:
        at = [(speed, rung["points"]) for speed, rung in rungs if rung["share"] == share]
        series.append(Series(f"after {share:.0%} of the steps", sorted(at[index] for index in non_dominated(at))))
    if winner:
        series.append(Series("winner", [(_drawn(winner), winner["points"])], [(winner["low"], winner["high"])]))
    return _table(
        found,
        title="The front",
        caption="Students than which no other is faster and better, after each rung: speed-up over the teacher in "
        f"torch, and {found['metric']} minus the teacher's on validation rows in points, with the paired 95% interval.",
        name="front",
        picture=line_chart(
            series,
            title="The front",
            x_label=FASTER,
            y_label="difference (points)",
            log="x",
        ),
        trials=[row for row in found["trials"] if row["trial"] in found["front"]],
    )


def _drawn(row: Mapping[str, Any]) -> float:
    """Return a speed-up with the digits that are known: charts of few points have it for a tick."""
    return float(f"{row['speedup']:.3g}")


def _tried(found: Mapping[str, Any]) -> ReportTable:
    timed = grouped((row for row in found["trials"] if row["speedup"]), lambda row: row["family"])
    series = [Series(name, [(row["trial"], _drawn(row)) for row in rows]) for name, rows in timed.items()]
    title = "All that was tried"
    return _table(
        found,
        title=title,
        caption="Every shape in the order in which it was timed, with untrained weights, on validation rows, one at a "
        "time.",
        name="trials",
        picture=line_chart(series, title=title, x_label="trial", y_label=FASTER, log="y", lines=False),
        trials=found["trials"],
    )


def _table(
    found: Mapping[str, Any],
    *,
    title: str,
    caption: str,
    name: str,
    picture: Picture,
    trials: Sequence[Mapping[str, Any]],
) -> ReportTable:
    metric, rows = found["metric"], []
    headings = ["Student", "Trial", "Speed-up", "Latency", "Size", metric_title(metric), "Points", "Steps"]
    for row in trials:
        interval = span(times(row["low_speedup"]), times(row["high_speedup"])) if row["speedup"] else ""
        timed = [
            number(row["speedup"] or None, times, small=interval),
            number(row["latency_ms"] if row["speedup"] else None, milliseconds),
            number(row["size_bytes"] if row["speedup"] else None, megabytes),
        ]
        trained = [*quality(row, metric), integer(row["steps"])] if row["rungs"] else [EMPTY] * 3
        rows.append([Cell(row["name"]), number(row["trial"], str), *timed, *trained, Cell(row["ended"])])
    return ReportTable(title, [*headings, "Why it ended"], rows, pictures=[picture], caption=caption, name=name)
