"""Report of ``compress cascade``: which model answers how many rows, what that costs and what it loses."""

from collections.abc import Mapping
from typing import Any

from compress.benchmarking.results.formatting import in_points, milliseconds, plural, points, shown, span, times
from compress.reporting.curves import Chart
from compress.reporting.rendering import StudyPage, quality
from compress.reporting.svg import Series, line_chart
from compress.reporting.tables import Cell, number


def view(found: Mapping[str, Any]) -> StudyPage:
    """Return the page."""
    title = f"A cascade of {', '.join(found['members'])}"
    return StudyPage(title, "compress cascade", verdict(found), [_members(found), _front(found)])


def verdict(found: Mapping[str, Any]) -> list[str]:
    """Return what the cascade is made of, how fast it is, and what it loses, a sentence each."""
    chosen, last, budget = found["validation"], found["reference"], in_points(found["max_accuracy_drop"])
    answers = [f"{name} {share:.1%}" for name, share in zip(found["members"], chosen["answered"], strict=True)]
    left_out = f" Left out, as they do not help: {', '.join(found['left_out'])}." if found["left_out"] else ""
    sentences = [
        f"Of {plural(chosen['rows'], 'validation row')} each answers: {', '.join(answers)}.{left_out}",
        f"Mean time of a text {milliseconds(chosen['latency_ms'])}, {times(chosen['speedup'])} as fast as {last} "
        f"alone: arithmetic from the median time of each model without tokenisation (batch size 1, "
        f"{plural(found['threads'], 'thread')}). The slowest texts take as long as all models together: 'compress "
        "benchmark' measures mean and percentiles.",
        f"{_loss(found, 'validation')} It is the fastest of {found['tried']:,} cascades whose interval on these rows "
        f"is within {budget}. The rows chose it, so that on others it loses a little more.",
    ]
    test = found.get("test")
    if test is None:
        return [*sentences, "Give --test FILE for a figure on rows that took no part in the choice."]
    held = f"That it loses at most {budget} they neither confirm nor refute."
    if test["low"] >= -found["max_accuracy_drop"]:
        held = f"They confirm that it loses at most {budget}."
    elif test["high"] < -found["max_accuracy_drop"]:
        held = f"They refute that it loses at most {budget}."
    return [*sentences, f"{_loss(found, 'test')} These rows took no part in the choice. {held}"]


def _loss(found: Mapping[str, Any], role: str) -> str:
    one, last, metric = found[role], found["reference"], found["metric"]
    return (
        f"{metric.capitalize()} {shown(one['value'], metric)} on {plural(one['rows'], f'{role} row')}: "
        f"{points(one['points'])} points ({points(one['low'])} to {points(one['high'])}) to {last}."
    )


def _members(found: Mapping[str, Any]) -> Chart:
    thresholds = dict(zip(found["members"], [*found["thresholds"], None], strict=True))
    answered = dict(zip(found["members"], found["validation"]["answered"], strict=True))
    rows = []
    for model in found["models"]:
        name, limit = model["name"], thresholds.get(model["name"])
        rest = "what is left" if name in thresholds else "left out"
        rows.append(
            [
                Cell(name),
                number(model["latency_ms"], milliseconds),
                number(model["speedup"], times),
                Cell(shown(model["value"], found["metric"]), "", model["value"]),
                Cell(rest if limit is None else f"{limit:.4f}", "", limit),
                number(answered.get(name, 0.0), "{:.1%}".format),
            ]
        )
    return Chart(
        title="The models",
        caption="Each alone on the validation rows; the confidence from which it answers, and how many of the rows.",
        name="models",
        headings=["Model", "Time of a text", "Speed-up to the last", "Alone", "Answers from", "Answers"],
        rows=rows,
    )


def _front(found: Mapping[str, Any]) -> Chart:
    names, title = [model["name"] for model in found["models"]], "What speed costs"
    series = [
        Series(name, [(one["speedup"], one["points"]) for one in some], [(one["low"], one["high"]) for one in some])
        for name, some in (("cascades", found["front"]), ("chosen", [found["validation"]]))
    ]
    x_label, y_label = "times as fast as the last model", "difference (points)"
    return Chart(
        title=title,
        caption="The cascades than which none of those tried is both faster and better, on the validation rows. Bars: "
        "paired 95% interval of the difference to the last model.",
        name="front",
        pictures=[line_chart(series, title=title, x_label=x_label, y_label=y_label, log="x")],
        headings=["Members", "Speed-up", "Answered", "Metric", "Points", "Interval"],
        rows=[
            [
                Cell(", ".join(names[index] for index in one["members"])),
                number(one["speedup"], times),
                Cell(", ".join(f"{share:.0%}" for share in one["answered"])),
                *quality(one, found["metric"]),
                Cell(span(points(one["low"]), points(one["high"]))),
            ]
            for one in found["front"]
        ],
    )
