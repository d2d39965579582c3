"""Report of ``compress calibrate``: reliability diagram, loss by method, and what is accepted at which confidence."""

from collections.abc import Mapping
from typing import Any

from compress.benchmarking.results.formatting import span
from compress.reporting.curves import Chart
from compress.reporting.rendering import StudyPage
from compress.reporting.svg import Series, line_chart
from compress.reporting.tables import EMPTY, Cell, number

METHODS = {"none": "no scaling", "temperature": "temperature scaling", "vector": "vector scaling"}


def view(found: Mapping[str, Any]) -> StudyPage:
    """Return the page."""
    contents = [_reliability(found), _methods(found), _coverage(found)]
    if found["acceptance"]:
        contents.append(_classes(found["acceptance"]))
    return StudyPage(f"Confidence of {found['model']}", "compress calibrate", verdict(found), contents)


def verdict(found: Mapping[str, Any]) -> list[str]:
    """Return what was done to the probabilities, what it changed, and what is accepted, a sentence each."""
    before, after, acceptance = found["before"], found["after"], found["acceptance"]
    rows = f"{found['rows']:,} validation rows, each judged by what was fitted on other rows"
    methods = {one["name"]: one for one in found["methods"]}
    change, tried = methods[found["method"]]["change"], methods["temperature"]
    mean = "a mean temperature of" if found["method"] == "vector" else "a temperature of"
    sure = "lowers" if change["high"] < 0 else "may lower"
    sentences = [
        f"The probabilities stay as they are: a temperature of {tried['temperature']:.3g} changes the loss by "
        f"{_signed(tried['change'])} nats a row ({rows})."
        if found["method"] == "none"
        else f"{METHODS[found['method']].capitalize()}, with {mean} {found['temperature']:.3g}, {sure} the loss: "
        f"{_signed(change)} nats a row ({rows}).",
        f"Calibration error {_percent(before['calibration_error'])} before, {_percent(after['calibration_error'])} "
        f"after; mean confidence {100 * before['confidence']:.1f}% before, {100 * after['confidence']:.1f}% after, "
        f"where {_percent(after['accuracy'])} are right.",
    ]
    if found["method"] == "vector":
        sentences.append(f"Vector scaling may change predictions: {_percent(before['accuracy'])} were right before.")
    if not acceptance:
        return sentences
    percent, certainty = (f"{100 * acceptance[key]:g}%" for key in ("right", "certainty"))
    asked = f"at least {percent} are right, with {certainty} certainty"
    if acceptance["by"] == "class":
        thresholds = list(acceptance["thresholds"].values())
        return [
            *sentences,
            f"Accepted are predictions of a class of which {asked}, each class on its own: "
            f"{len(thresholds) - thresholds.count(None)} of {len(thresholds)} classes have a threshold, and "
            f"{100 * acceptance['accepted_by_class']:.1f}% of the rows are accepted. Predictions of the others never "
            "are.",
        ]
    level = acceptance["overall"]
    return [
        *sentences,
        f"Accepted are predictions of a confidence of {level['threshold']:.4f} or more, {100 * level['share']:.1f}% of "
        f"the rows: {100 * level['right']:.1f}% of these are right, and of new ones {asked}.",
    ]


def _percent(value: Mapping[str, float]) -> str:
    return f"{100 * value['value']:.1f}% ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def _change(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _signed(value: Mapping[str, float]) -> str:
    return "{} ({} to {})".format(*(_change(value[key]) for key in ("value", "low", "high")))


def _share(value: float) -> Cell:
    return number(value, lambda share: f"{100 * share:.1f}%")


def _reliability(found: Mapping[str, Any]) -> Chart:
    bins = [(name, one) for name in ("before", "after") for one in found[name]["bins"]]
    ends = [100 * one["confidence"] for _, one in bins]
    shown = [(name, one) for name, one in bins if name == "before" or found["method"] != "none"]
    series = [Series("as often right as it says", [(end, end) for end in (min(ends), max(ends))], dots=())]
    for name in dict.fromkeys(name for name, _ in shown):
        own = found[name]["bins"]
        points = [(100 * one["confidence"], 100 * one["right"]) for one in own]
        series.append(Series(name, points, [(100 * one["low"], 100 * one["high"]) for one in own]))
    return Chart(
        title="Is a confidence of 90% right nine times in ten?",
        caption="Rows in bins of equally many, by their confidence. Points below the straight line are too confident. "
        "Bars: Wilson's 95% interval. After: each row by what was fitted on other rows.",
        name="reliability",
        pictures=[line_chart(series, title="Reliability", x_label="confidence (%)", y_label="right (%)")],
        headings=["", "Rows", "Confidence", "Right", "Interval"],
        rows=[
            [
                Cell(name),
                Cell(str(one["rows"])),
                _share(one["confidence"]),
                _share(one["right"]),
                Cell(span(f"{100 * one['low']:.1f}%", f"{100 * one['high']:.1f}%")),
            ]
            for name, one in shown
        ],
    )


def _methods(found: Mapping[str, Any]) -> Chart:
    return Chart(
        title="Which scaling?",
        caption="Change of the mean negative log-likelihood to the model as it was, in nats, by ten-fold "
        "cross-validation, with its paired 95% interval. Temperature scaling is used where the change is negative, "
        "vector scaling where its interval is below what is used otherwise.",
        name="methods",
        headings=["Method", "Temperature", "Loss", "Change", "Interval"],
        rows=[
            [
                Cell(METHODS[one["name"]], "used" if one["name"] == found["method"] else ""),
                number(one["temperature"], "{:.3f}".format),
                number(one["loss"], "{:.4f}".format),
                number(one["change"]["value"], _change),
                Cell(span(_change(one["change"]["low"]), _change(one["change"]["high"]))),
            ]
            for one in found["methods"]
        ],
    )


def _coverage(found: Mapping[str, Any]) -> Chart:
    levels = found["coverage"]
    series = [
        Series(name, [(100 * one["share"], 100 * (1 - one[key])) for one in levels])
        for name, key in (("wrong", "right"), ("wrong at most", "at_least"))
    ]
    return Chart(
        title="Coverage and risk",
        caption="How many of the accepted predictions are wrong, when the share of the rows is accepted that the model "
        "is most confident of. At most: the binomial bound, which holds for all points together with 95% certainty.",
        name="coverage",
        pictures=[line_chart(series, title="Coverage and risk", x_label="accepted (%)", y_label="wrong (%)")],
        headings=["Confidence", "Accepted", "Rows", "Right", "Right at least"],
        rows=[_level(one) for one in levels],
    )


def _classes(acceptance: Mapping[str, Any]) -> Chart:
    used = "here." if acceptance["by"] == "class" else "only after 'compress calibrate --accept-by class'."
    return Chart(
        title="Thresholds of the classes",
        caption=f"The confidence from which predictions of a class are right {100 * acceptance['right']:g}% of the "
        "time, each class with 95% certainty of its own; shares are of the rows predicted to be of it. Used by "
        f"'compress predict' {used}",
        name="classes",
        headings=["Class", "Confidence", "Accepted", "Rows", "Right", "Right at least"],
        rows=[
            [Cell(label), *(_level(level) if level else [Cell("never"), *[EMPTY] * 4])]
            for label, level in acceptance["classes"].items()
        ],
    )


def _level(level: Mapping[str, Any]) -> list[Cell]:
    return [
        number(level["threshold"], "{:.4f}".format),
        _share(level["share"]),
        number(level["rows"], "{:,}".format),
        _share(level["right"]),
        _share(level["at_least"]),
    ]
