"""Pages of ``compress calibrate`` and ``compress cascade``: which predictions are right, and at what confidence."""

from collections.abc import Iterator, Mapping
from typing import Any

from compress.benchmarking.results.formatting import in_points, milliseconds, plural, points, shown, span, times
from compress.reporting.pages import EMPTY, Cell, ReportTable, StagePage, integer, number, quality
from compress.reporting.svg import Series, line_chart
from compress.requests.labelling import LANGUAGE_MODEL

METHODS = {"none": "no scaling", "temperature": "temperature scaling", "vector": "vector scaling"}
LEVEL = ["Confidence", "Accepted", "Rows", "Right", "Right at least"]


def calibration_page(found: Mapping[str, Any]) -> StagePage:
    """Return the page of a calibrated model: reliability diagram, loss by method, and what is accepted when."""
    contents = [_reliability(found), _methods(found), _coverage(found)]
    contents += [_classes(found["acceptance"])] if found["acceptance"] else []
    return StagePage(f"Confidence of {found['model']}", "compress calibrate", _calibration_verdict(found), contents)


def _calibration_verdict(found: Mapping[str, Any]) -> list[str]:
    before, after, acceptance, method = found["before"], found["after"], found["acceptance"], found["method"]
    rows = f"{found['rows']:,} validation rows, each judged by what was fitted on other rows"
    methods = {one["name"]: one for one in found["methods"]}
    change, tried = methods[method]["change"], methods["temperature"]
    mean = "a mean temperature of" if method == "vector" else "a temperature of"
    sure = "lowers" if change["high"] < 0 else "may lower"
    sentences = [
        f"The probabilities stay as they are: a temperature of {tried['temperature']:.3g} changes the loss by "
        f"{_signed(tried['change'])} nats a row ({rows})."
        if method == "none"
        else f"{METHODS[method].capitalize()}, with {mean} {found['temperature']:.3g}, {sure} the loss: "
        f"{_signed(change)} nats a row ({rows}).",
        f"Calibration error {_percent(before['calibration_error'])} before, {_percent(after['calibration_error'])} "
        f"after; mean confidence {before['confidence']:.1%} before, {after['confidence']:.1%} after, "
        f"where {_percent(after['accuracy'])} are right.",
    ]
    if method == "vector":
        sentences.append(f"Vector scaling may change predictions: {_percent(before['accuracy'])} were right before.")
    if decisions := found.get("decisions"):
        label, by = decisions.get("label"), decisions["by"]
        names = ("recall", "precision", "accuracy" if "accuracy" in decisions["metrics"] else "macro-f1")
        first, *others = (
            f"{name} {before_it:.1%} before and {after_it:.1%} after"
            for name, (before_it, after_it) in decisions["metrics"].items()
            if not label or name in names
        )
        where = "its F1 is highest" if by == "f1" else f"its {by} is {decisions['least']:.6g}, with 95% certainty"
        sentences.append(
            f"{repr(label) if label else 'Each label'} is given from where {where}, which was moved to a probability "
            f"of 0.5: {'; '.join([first, *(others if label else others[:1])])}, on "
            f"{'rows that none was found on' if by == 'f1' else 'the rows that it was found on'}. Probabilities no "
            f"longer say how often {'this' if label else 'a'} label is right."
        )
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
            f"{acceptance['accepted_by_class']:.1%} of the predictions are accepted. Predictions of the others never "
            "are.",
        ]
    level = acceptance["overall"]
    return [
        *sentences,
        f"Accepted are predictions of a confidence of {level['threshold']:.4f} or more, {level['share']:.1%} of "
        f"the rows: {level['right']:.1%} of these are right, and of new ones {asked}.",
    ]


def _percent(value: Mapping[str, float]) -> str:
    return f"{value['value']:.1%} ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def _change(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _signed(value: Mapping[str, float]) -> str:
    return "{} ({} to {})".format(*(_change(value[key]) for key in ("value", "low", "high")))


def _reliability(found: Mapping[str, Any]) -> ReportTable:
    ends = [100 * one["confidence"] for name in ("before", "after") for one in found[name]["bins"]]
    shown = {name: found[name]["bins"] for name in ("before", "after") if name == "before" or found["method"] != "none"}
    series = [Series("as often right as it says", [(end, end) for end in (min(ends), max(ends))], dots=())]
    for name, bins in shown.items():
        points = [(100 * one["confidence"], 100 * one["right"]) for one in bins]
        series.append(Series(name, points, [(100 * one["low"], 100 * one["high"]) for one in bins]))
    return ReportTable(
        title="Is a confidence of 90% right nine times in ten?",
        caption="Rows, of several labels each label of each row, in bins of equally many, by their confidence. Points "
        "below the straight line are too confident. Bars: 95% intervals. After: each row by what was fitted on other "
        "rows.",
        name="reliability",
        pictures=[line_chart(series, title="Reliability", x_label="confidence (%)", y_label="right (%)")],
        headings=["", "Rows", "Confidence", "Right", "Interval"],
        rows=[
            [
                Cell(name),
                Cell(str(one["rows"])),
                _share(one["confidence"]),
                _share(one["right"]),
                Cell(span(f"{one['low']:.1%}", f"{one['high']:.1%}")),
            ]
            for name, bins in shown.items()
            for one in bins
        ],
    )


def _share(value: float) -> Cell:
    return number(value, "{:.1%}".format)


def _methods(found: Mapping[str, Any]) -> ReportTable:
    return ReportTable(
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


def _coverage(found: Mapping[str, Any]) -> ReportTable:
    series = [
        Series(name, [(100 * one["share"], 100 * (1 - one[key])) for one in found["coverage"]])
        for name, key in (("wrong", "right"), ("wrong at most", "at_least"))
    ]
    return ReportTable(
        title="Coverage and risk",
        caption="How many of the accepted predictions are wrong, of several labels whole sets, when the share of the "
        "rows is accepted that the model is most confident of. At most: the binomial bound, which holds for all points "
        "together with 95% certainty.",
        name="coverage",
        pictures=[line_chart(series, title="Coverage and risk", x_label="accepted (%)", y_label="wrong (%)")],
        headings=LEVEL,
        rows=[_level(one) for one in found["coverage"]],
    )


def _classes(acceptance: Mapping[str, Any]) -> ReportTable:
    used = "here." if acceptance["by"] == "class" else "only after 'compress calibrate --accept-by class'."
    return ReportTable(
        title="Thresholds of the classes",
        caption=f"The confidence from which predictions of a class are right {100 * acceptance['right']:g}% of the "
        "time, each class with 95% certainty of its own; shares are of the rows predicted to be of it. Used by "
        f"'compress predict' {used}",
        name="classes",
        headings=["Class", *LEVEL],
        rows=[
            [Cell(label), *(_level(level) if level else [Cell("never"), *[EMPTY] * 4])]
            for label, level in acceptance["classes"].items()
        ],
    )


def _level(level: Mapping[str, Any]) -> list[Cell]:
    return [
        number(level["threshold"], "{:.4f}".format),
        _share(level["share"]),
        integer(level["rows"]),
        _share(level["right"]),
        _share(level["at_least"]),
    ]


def cascade_page(found: Mapping[str, Any]) -> StagePage:
    """Return the page of a cascade: which model answers how many rows, what that costs and what it loses."""
    title = f"A cascade of {', '.join(found['members'])}"
    return StagePage(title, "compress cascade", _cascade_verdict(found), [_members(found), _front(found)])


def _cascade_verdict(found: Mapping[str, Any]) -> list[str]:
    chosen, last, kept = found["validation"], found["reference"], _agreement if "agree" in found else _drop
    answers = [f"{name} {share:.1%}" for name, share in zip(found["members"], chosen["answered"], strict=True)]
    left_out = f" Left out, as they do not help: {', '.join(found['left_out'])}." if found["left_out"] else ""
    return [
        f"Of {plural(chosen['rows'], 'validation row')} each answers: {', '.join(answers)}.{left_out}",
        f"Mean time of a text {milliseconds(chosen['latency_ms'])}, {times(chosen['speedup'])} as fast as {last} "
        "alone: arithmetic from the median time of each model from text to logits (batch size 1, "
        f"{plural(found['threads'], 'thread')}). The slowest texts take as long as all models together."
        + " 'compress benchmark' measures mean and percentiles."
        * (not found["members"][-1].startswith(LANGUAGE_MODEL)),
        *_saving(found),
        f"{_loss(found, 'validation')} {kept(found, 'validation')}",
        f"{_loss(found, 'test')} These rows took no part in the choice. {kept(found, 'test')}"
        if "test" in found
        else "Give --test FILE for a figure on rows that took no part in the choice.",
    ]


def _saving(found: Mapping[str, Any]) -> Iterator[str]:
    if usd := found.get("usd_per_1000_texts"):
        yield (
            f"A thousand texts like these cost {usd['cascade']:.4f} USD in place of {usd['alone']:.4f}, by the prices "
            "given and the answers to the validation rows."
        )


def _drop(found: Mapping[str, Any], role: str) -> str:
    most, one = found["max_accuracy_drop"], found[role]
    if role == "validation":
        return (
            f"It is the fastest of {found['tried']:,} cascades whose interval on these rows is within "
            f"{in_points(most)}. The rows chose it, so that on others it loses a little more."
        )
    held = "confirm" if one["low"] >= -most else "refute" if one["high"] < -most else "neither confirm nor refute"
    return f"They {held} that it loses at most {in_points(most)}."


def _agreement(found: Mapping[str, Any], role: str) -> str:
    one, first = found["agreement"][role], found["members"][0]
    same = f"{one['same']:,} of them" + (f" ({one['same'] / one['rows']:.1%})" if one["rows"] else "")
    sure = {
        "validation": f"With 95% certainty at least {100 * found['agree']:.6g}% of such answers are the same, on texts "
        "like these.",
        "test": f"By these rows alone that is {one['at_least']:.1%} at least, with 95% certainty.",
    }
    rows = plural(one["rows"], f"{role} row")
    return f"{first} answers {rows}, {same} as {found['reference']} does. {sure[role]}"


def _loss(found: Mapping[str, Any], role: str) -> str:
    one, last, metric = found[role], found["reference"], found["metric"]
    return (
        f"{metric.capitalize()} {shown(one['value'], metric)} on {plural(one['rows'], f'{role} row')}: "
        f"{points(one['points'])} points ({points(one['low'])} to {points(one['high'])}) to {last}."
    )


def _members(found: Mapping[str, Any]) -> ReportTable:
    limits = dict.fromkeys((model["name"] for model in found["models"]), "left out")
    limits |= dict(zip(found["members"], [*found["thresholds"], "what is left"], strict=True))
    answered = dict(zip(found["members"], found["validation"]["answered"], strict=True))
    return ReportTable(
        title="The models",
        caption="Each alone on the validation rows; the confidence from which it answers, and how many of the rows.",
        name="models",
        headings=["Model", "Time of a text", "Speed-up to the last", "Alone", "Answers from", "Answers"],
        rows=[
            [
                Cell(model["name"]),
                number(model["latency_ms"], milliseconds),
                number(model["speedup"], times),
                Cell(shown(model["value"], found["metric"]), "", model["value"]),
                Cell(limit) if isinstance(limit := limits[model["name"]], str) else number(limit, "{:.4f}".format),
                number(answered.get(model["name"], 0.0), "{:.1%}".format),
            ]
            for model in found["models"]
        ],
    )


def _front(found: Mapping[str, Any]) -> ReportTable:
    names, title = [model["name"] for model in found["models"]], "What speed costs"
    series = [
        Series(name, [(one["speedup"], one["points"]) for one in some], [(one["low"], one["high"]) for one in some])
        for name, some in (("cascades", found["front"]), ("chosen", [found["validation"]]))
    ]
    x_label, y_label = "times as fast as the last model", "difference (points)"
    return ReportTable(
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
