"""Report of ``compress calibrate``: reliability diagram, loss by method, and what is accepted at which confidence."""

from collections.abc import Mapping, Sequence
from typing import Any

from compress.benchmarking.results.formatting import NONE, span
from compress.reporting.charts import svg
from compress.reporting.figure_page import Figure, FigurePage
from compress.reporting.tables.cells import Cell

METHODS = {"none": "no scaling", "temperature": "temperature scaling", "vector": "vector scaling"}


def view(found: Mapping[str, Any]) -> FigurePage:
    """Return the page."""
    figures = [_reliability(found), _methods(found), _coverage(found)]
    if found["acceptance"]:
        figures.append(_classes(found))
    return FigurePage(f"Confidence of {found['model']}", "compress calibrate", verdict(found), figures)


def verdict(found: Mapping[str, Any]) -> list[str]:
    """Return what was done to the probabilities, what it changed, and what is accepted, a sentence each."""
    before, after = found["before"], found["after"]
    rows = f"{found['rows']:,} validation rows, each judged by what was fitted on other rows"
    change = next(one["change"] for one in found["methods"] if one["name"] == found["method"])
    if found["method"] == "none":
        tried = next(one for one in found["methods"] if one["name"] == "temperature")
        told = [
            f"The probabilities stay as they are: a temperature of {tried['temperature']:.3g} changes the loss by "
            f"{_signed(tried['change'])} nats a row ({rows})."
        ]
    else:
        sure = "lowers" if change["high"] < 0 else "may lower"
        told = [
            f"{METHODS[found['method']].capitalize()}, with {_temperature(found)}, {sure} the loss: "
            f"{_signed(change)} nats a row ({rows})."
        ]
    told.append(
        f"Calibration error {_percent(before['calibration_error'])} before, {_percent(after['calibration_error'])} "
        f"after; mean confidence {100 * before['confidence']:.1f}% before, {100 * after['confidence']:.1f}% after, "
        f"where {_percent(after['accuracy'])} are right."
    )
    if found["method"] == "vector":
        told.append(f"Vector scaling may change predictions: {_percent(before['accuracy'])} were right before.")
    return told + (_accepted(found["acceptance"]) if found["acceptance"] else [])


def _accepted(acceptance: Mapping[str, Any]) -> list[str]:
    percent, certainty = (f"{100 * acceptance[key]:g}%" for key in ("right", "certainty"))
    asked = f"at least {percent} are right, with {certainty} certainty"
    if acceptance["by"] == "class":
        thresholds = acceptance["thresholds"].values()
        count = sum(threshold is not None for threshold in thresholds)
        return [
            f"Accepted are predictions of a class of which {asked}, each class on its own: {count} of "
            f"{len(thresholds)} classes have a threshold, and {100 * acceptance['accepted_by_class']:.1f}% of the rows "
            "are accepted. Predictions of the others never are."
        ]
    level = acceptance["overall"]
    return [
        f"Accepted are predictions of a confidence of {level['threshold']:.4f} or more, {100 * level['share']:.1f}% of "
        f"the rows: {100 * level['right']:.1f}% of these are right, and of new ones {asked}."
    ]


def _temperature(found: Mapping[str, Any]) -> str:
    mean = "a mean temperature of" if found["method"] == "vector" else "a temperature of"
    return f"{mean} {found['temperature']:.3g}"


def _percent(value: Mapping[str, float]) -> str:
    return f"{100 * value['value']:.1f}% ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def _signed(value: Mapping[str, float]) -> str:
    value_text, low, high = (f"{value[key]:+.4f}".replace("-", "−") for key in ("value", "low", "high"))
    return f"{value_text} ({low} to {high})"


def _reliability(found: Mapping[str, Any]) -> Figure:
    ends = [one["confidence"] for name in ("before", "after") for one in found[name]["bins"]]
    series = [
        svg.Series("as often right as it says", [(100 * end, 100 * end) for end in (min(ends), max(ends))], dots=())
    ]
    names = ("before", "after") if found["method"] != "none" else ("before",)
    rows = []
    for name in names:
        bins = found[name]["bins"]
        series.append(
            svg.Series(
                name,
                [(100 * one["confidence"], 100 * one["right"]) for one in bins],
                [(100 * one["low"], 100 * one["high"]) for one in bins],
            )
        )
        rows += [
            [Cell(name), Cell(str(one["rows"])), _share(one["confidence"]), _share(one["right"]), _span(one)]
            for one in bins
        ]
    return Figure(
        "Is a confidence of 90% right nine times in ten?",
        "Rows in bins of equally many, by their confidence. Points below the straight line are too confident. Bars: "
        "Wilson's 95% interval. After: each row by what was fitted on other rows.",
        "reliability",
        svg.line_chart(series, title="Reliability", x_label="confidence (%)", y_label="right (%)"),
        ["", "Rows", "Confidence", "Right", "Interval"],
        rows,
    )


def _methods(found: Mapping[str, Any]) -> Figure:
    return Figure(
        "Which scaling?",
        "Change of the mean negative log-likelihood to the model as it was, in nats, by ten-fold cross-validation, "
        "with its paired 95% interval. Temperature scaling is used where the change is negative, vector scaling where "
        "its interval is below what is used otherwise.",
        "methods",
        None,
        ["Method", "Temperature", "Loss", "Change", "Interval"],
        [
            [
                Cell(METHODS[one["name"]], "used" if one["name"] == found["method"] else ""),
                Cell(f"{one['temperature']:.3f}", "", one["temperature"]),
                Cell(f"{one['loss']:.4f}", "", one["loss"]),
                Cell(f"{one['change']['value']:+.4f}".replace("-", "−"), "", one["change"]["value"]),
                Cell(span(*(f"{one['change'][end]:+.4f}".replace("-", "−") for end in ("low", "high")))),
            ]
            for one in found["methods"]
        ],
    )


def _coverage(found: Mapping[str, Any]) -> Figure:
    levels = found["coverage"]
    series = [
        svg.Series("wrong", [(100 * one["share"], 100 * (1 - one["right"])) for one in levels]),
        svg.Series("wrong at most", [(100 * one["share"], 100 * (1 - one["at_least"])) for one in levels]),
    ]
    return Figure(
        "Coverage and risk",
        "How many of the accepted predictions are wrong, when the share of the rows is accepted that the model is most "
        "confident of. At most: the binomial bound, which holds for all points together with 95% certainty.",
        "coverage",
        svg.line_chart(series, title="Coverage and risk", x_label="accepted (%)", y_label="wrong (%)"),
        ["Confidence", "Accepted", "Rows", "Right", "Right at least"],
        [_level(one) for one in levels],
    )


def _classes(found: Mapping[str, Any]) -> Figure:
    acceptance = found["acceptance"]
    return Figure(
        "Thresholds of the classes",
        f"The confidence from which predictions of a class are right {100 * acceptance['right']:g}% of the time, each "
        "class with 95% certainty of its own; shares are of the rows predicted to be of it. Used by 'compress predict' "
        + ("here." if acceptance["by"] == "class" else "only after 'compress calibrate --accept-by class'."),
        "classes",
        None,
        ["Class", "Confidence", "Accepted", "Rows", "Right", "Right at least"],
        [
            [Cell(label), *(_level(level) if level else [Cell("never"), *[Cell(NONE)] * 4])]
            for label, level in acceptance["classes"].items()
        ],
    )


def _level(level: Mapping[str, Any]) -> Sequence[Cell]:
    return [
        Cell(f"{level['threshold']:.4f}", "", level["threshold"]),
        _share(level["share"]),
        Cell(f"{level['rows']:,}", "", level["rows"]),
        _share(level["right"]),
        _share(level["at_least"]),
    ]


def _share(value: float) -> Cell:
    return Cell(f"{100 * value:.1f}%", "", value)


def _span(one: Mapping[str, float]) -> Cell:
    return Cell(span(f"{100 * one['low']:.1f}%", f"{100 * one['high']:.1f}%"))
