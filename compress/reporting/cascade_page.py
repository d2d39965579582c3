"""Report of ``compress cascade``: which model answers how many rows, what that costs and what it loses."""

from collections.abc import Mapping, Sequence
from typing import Any

from compress.benchmarking.results.formatting import in_points, milliseconds, plural, points, shown, span, times
from compress.reporting.charts import svg
from compress.reporting.figure_page import Figure, FigurePage, quality
from compress.reporting.tables.cells import Cell


def view(found: Mapping[str, Any]) -> FigurePage:
    """Return the page."""
    title = f"A cascade of {', '.join(found['members'])}"
    return FigurePage(title, "compress cascade", verdict(found), [_members(found), _front(found)])


def verdict(found: Mapping[str, Any]) -> list[str]:
    """Return what the cascade is made of, how fast it is, and what it loses, a sentence each."""
    chosen, last = found["validation"], found["reference"]
    answers = [f"{name} {share:.1%}" for name, share in zip(found["members"], chosen["answered"], strict=True)]
    told = [
        f"Of {plural(chosen['rows'], 'validation row')} each answers: {', '.join(answers)}."
        + (f" Left out, as they do not help: {', '.join(found['left_out'])}." if found["left_out"] else "")
    ]
    told.append(
        f"Mean time of a text {milliseconds(chosen['latency_ms'])}, {times(chosen['speedup'])} as fast as {last} "
        f"alone: arithmetic from the median time of each model without tokenisation (batch size 1, "
        f"{plural(found['threads'], 'thread')}). The slowest texts take as long as all models together: 'compress "
        "benchmark' measures mean and percentiles."
    )
    told.append(
        f"{_loss(found, 'validation')} It is the fastest of {found['tried']:,} cascades whose interval on these rows "
        f"is within {in_points(found['max_accuracy_drop'])}. The rows chose it, so that on others it loses a little "
        "more."
    )
    told.append(
        f"{_loss(found, 'test')} These rows took no part in the choice." + _held(found)
        if "test" in found
        else "Give --test FILE for a figure on rows that took no part in the choice."
    )
    return told


def _held(found: Mapping[str, Any]) -> str:
    """Say what test rows tell of the budget."""
    allowed, test = found["max_accuracy_drop"], found["test"]
    if test["low"] >= -allowed:
        return f" They confirm that it loses at most {in_points(allowed)}."
    if test["high"] < -allowed:
        return f" They refute that it loses at most {in_points(allowed)}."
    return f" That it loses at most {in_points(allowed)} they neither confirm nor refute."


def _loss(found: Mapping[str, Any], role: str) -> str:
    one, last, metric = found[role], found["reference"], found["metric"]
    return (
        f"{metric.capitalize()} {shown(one['value'], metric)} on {plural(one['rows'], f'{role} row')}: "
        f"{points(one['points'])} points ({points(one['low'])} to {points(one['high'])}) to {last}."
    )


def _members(found: Mapping[str, Any]) -> Figure:
    thresholds = dict(zip(found["members"], [*found["thresholds"], None], strict=True))
    answered = dict(zip(found["members"], found["validation"]["answered"], strict=True))
    rows = []
    for model in found["models"]:
        name = model["name"]
        limit = thresholds.get(name)
        said = "left out" if name not in thresholds else "what is left" if limit is None else f"{limit:.4f}"
        share = answered.get(name, 0.0)
        rows.append(
            [
                Cell(name),
                Cell(milliseconds(model["latency_ms"]), "", model["latency_ms"]),
                Cell(times(model["speedup"]), "", model["speedup"]),
                Cell(shown(model["value"], found["metric"]), "", model["value"]),
                Cell(said, "", limit),
                Cell(f"{share:.1%}", "", share),
            ]
        )
    return Figure(
        "The models",
        "Each alone on the validation rows; the confidence from which it answers, and how many of the rows.",
        "models",
        None,
        ["Model", "Time of a text", "Speed-up to the last", "Alone", "Answers from", "Answers"],
        rows,
    )


def _front(found: Mapping[str, Any]) -> Figure:
    chosen = found["validation"]
    front: Sequence[Mapping[str, Any]] = found["front"]
    series = [
        svg.Series(
            "cascades",
            [(one["speedup"], one["points"]) for one in front],
            [(one["low"], one["high"]) for one in front],
        ),
        svg.Series("chosen", [(chosen["speedup"], chosen["points"])], [(chosen["low"], chosen["high"])]),
    ]
    names = [model["name"] for model in found["models"]]
    return Figure(
        "What speed costs",
        "The cascades than which none of those tried is both faster and better, on the validation rows. Bars: paired "
        "95% interval of the difference to the last model.",
        "front",
        svg.line_chart(
            series,
            title="What speed costs",
            x_label="times as fast as the last model",
            y_label="difference (points)",
            log="x",
        ),
        ["Members", "Speed-up", "Answered", "Metric", "Points", "Interval"],
        [
            [
                Cell(", ".join(names[number] for number in one["members"])),
                Cell(times(one["speedup"]), "", one["speedup"]),
                Cell(", ".join(f"{share:.0%}" for share in one["answered"])),
                *quality(one, found["metric"]),
                Cell(span(points(one["low"]), points(one["high"]))),
            ]
            for one in front
        ],
    )
