"""Report of ``compress heads``: importance of every head, as a page, tables and charts."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any

from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import in_percent, metric_title, plural, points, shown
from compress.reporting.curves import Chart
from compress.reporting.rendering import StudyPage, quality
from compress.reporting.svg import Series, heat_map, line_chart
from compress.reporting.tables import EMPTY, Cell, number

EVALUATED = frozenset(("oracle", "shapley"))  # criteria that compare what the model is worth
BUDGET = 1.0  # points of loss that verdicts are about
SIGNIFICANT = 0.01  # of Michel et al. 2019, here after Holm's correction for so many heads


def view(study: Mapping[str, Any]) -> StudyPage:
    """Return the page of a study."""
    significant = holm([one["mcnemar_p"] for one in study["ablation"]], SIGNIFICANT)
    contents = [_importance(study, name) for name in study["criteria"] if name != "random"]
    contents += [_ablation(study, significant), _one_head(study), _evolution(study)]
    contents += [_correlations(study)] if study["correlations"] else []
    return StudyPage(f"The heads of {study['model']}", "compress heads", _verdict(study, significant), contents)


def holm(p_values: Sequence[float | None], level: float) -> list[bool | None]:
    """Return which of several tests are significant together (Holm 1979); None where no test was made."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    found = [None if p is None else False for p in p_values]
    for rank, (p, index) in enumerate(order):
        if p > level / (len(order) - rank):
            break
        found[index] = True
    return found


def _verdict(study: Mapping[str, Any], significant: Sequence[bool | None]) -> list[str]:
    heads, metric, rows = sum(study["heads_per_layer"]), study["metric"], plural(study["validation_rows"], "row")
    steps = [one for one in study["evolution"] if one["order"] == "gradient"]
    surely = _reached(list(takewhile(lambda one: one["low"] >= -BUDGET, steps)))
    unsure = _reached(list(takewhile(lambda one: one["high"] >= 0, steps)))
    chance = f"the first to go are a loss for certain on {rows}."
    if unsure:
        chance = f"up to {unsure} {rows} cannot tell a loss from chance."
    tested = (
        f"{significant.count(True)} of {heads} heads change the share of right answers for certain when they alone "
        f"are removed (McNemar, Holm, p < {SIGNIFICANT:g})."
    )
    return [
        f"{metric.capitalize()} of the whole model: {shown(study['value'], metric)} on "
        f"{study['validation_rows']:,} rows; heads were scored on {study['scoring_rows']:,} others.",
        *([tested] if set(significant) != {None} else []),
        f"In gradient order {surely or 'no heads'} cost surely less than {BUDGET:g} point; {chance} No weight was "
        "trained meanwhile: 'compress prune --recover' wins some of it back.",
    ]


def _reached(steps: Sequence[Mapping[str, Any]]) -> str:
    last = steps[-1] if steps else {"heads_removed": 0}
    if not last["heads_removed"]:
        return ""
    interval = f"{points(last['points'])} points, {points(last['low'])} to {points(last['high'])}"
    return f"{plural(last['heads_removed'], 'head')} ({100 * last['share_removed']:.0f}%: {interval})"


def _importance(study: Mapping[str, Any], name: str) -> Chart:
    rows, title = study["criteria"][name], f"Importance by {name}"
    widest = max(map(len, rows))
    by = f" by the {study['measure']} of the scoring rows" if name in EVALUATED else ""
    return Chart(
        title=title,
        caption=f"Raw scores{by}, see 'compress show {name}'. Dark matters most.",
        name=f"importance-{name}",
        pictures=[heat_map(rows, title=title)],
        headings=["Layer", *(f"head {head + 1}" for head in range(widest))],
        rows=[
            [Cell(f"layer {layer}"), *(number(v, "{:.4g}".format) for v in row), *[EMPTY] * (widest - len(row))]
            for layer, row in enumerate(rows, 1)
        ],
    )


def _ablation(study: Mapping[str, Any], significant: Sequence[bool | None]) -> Chart:
    found = list(zip(study["ablation"], significant, strict=True))

    def place(one: Mapping[str, Any]) -> float:
        """Return where a head is drawn: around its layer, so that heads of one value do not hide each other."""
        share = (one["head"] + 0.5) / study["heads_per_layer"][one["layer"]]
        return float(one["layer"] + 1 + 0.8 * (share - 0.5))

    series = [
        Series(name, drawn)
        for name, wanted in (("not tested", None), ("within chance", False), ("significant", True))
        if (drawn := [(place(one), one["points"]) for one, certain in found if certain is wanted])
    ]
    test = " The p of McNemar's test is as it is; significance is after Holm's correction."
    title, y_label = "One head removed", "difference (points)"
    return Chart(
        title=title,
        caption="Every head alone is removed, and all others stay: the difference to the whole model, by layer, the "
        "first head of a layer on the left." + test * (set(significant) != {None}),
        name="ablation",
        pictures=[line_chart(series, title=title, x_label="layer", y_label=y_label, lines=False)],
        headings=["Layer", "Head", metric_title(study["metric"]), "Points", "McNemar p", "Significant"],
        rows=[
            [
                Cell(str(one["layer"] + 1)),
                Cell(str(one["head"] + 1)),
                *quality(one, study["metric"]),
                number(one["mcnemar_p"], "{:.2g}".format),
                EMPTY if certain is None else Cell("yes" if certain else "no"),
            ]
            for one, certain in found
        ],
    )


def _one_head(study: Mapping[str, Any]) -> Chart:
    found, title, y_label = study["one_head"], "One head kept in a layer", "difference (points)"
    drawn = [(one["layer"] + 1, one["points"]) for one in found]
    series = [Series("best head alone", drawn, [(one["low"], one["high"]) for one in found])]
    return Chart(
        title="One head kept",
        caption="In one layer at a time all heads but one are removed: the one that is best on the scoring rows.",
        name="one_head",
        pictures=[line_chart(series, title=title, x_label="layer", y_label=y_label, lines=False)],
        headings=["Layer", "Head that stays", metric_title(study["metric"]), "Points"],
        rows=[
            [Cell(str(one["layer"] + 1)), Cell(str(one["head"] + 1)), *quality(one, study["metric"])] for one in found
        ],
    )


def _evolution(study: Mapping[str, Any]) -> Chart:
    metric, title = metric_title(study["metric"]), "Fewer and fewer heads"
    highest, scale = (1.0, 100) if in_percent(study["metric"]) else (float("inf"), 1)
    lowest = 0.0 if in_percent(study["metric"]) else float("-inf")  # no share of right answers is beyond
    series, rows = [], []
    for order, steps in grouped(study["evolution"], itemgetter("order")).items():
        seeds, drawn, bars = len({one["seed"] for one in steps}), [], []
        for same in grouped(steps, itemgetter("heads_removed")).values():
            values = [one["value"] for one in same]
            drawn.append((100 * same[0]["share_removed"], scale * sum(values) / len(values)))
            # Of several random orders the bar is from the lowest to the highest; of one it is the interval over rows.
            ends = [study["value"] + same[0][end] / 100 for end in ("low", "high")]
            low, high = (min(values), max(values)) if seeds > 1 else (min(highest, max(lowest, end)) for end in ends)
            bars.append((scale * low, scale * high))
        series.append(Series(f"{order} (mean of {seeds})" if seeds > 1 else order, drawn, bars))
        rows += [
            [
                Cell(order, f"seed {one['seed']}" if seeds > 1 else ""),
                Cell(str(one["heads_removed"])),
                Cell(f"{100 * one['share_removed']:.0f}%", "", one["share_removed"]),
                *quality(one, study["metric"]),
            ]
            for one in steps
        ]
    return Chart(
        title=title,
        caption="Heads go in an order, until each layer has one. Bars: 95% interval of the difference to the whole "
        "model; of random orders the lowest and the highest.",
        name="evolution",
        pictures=[line_chart(series, title=title, x_label="heads removed (%)", y_label=metric)],
        headings=["Order", "Heads removed", "Share", metric, "Points"],
        rows=rows,
    )


def _correlations(study: Mapping[str, Any]) -> Chart:
    names, form = list(study["criteria"]), "{:.2f}".format
    known = {frozenset((one["first"], one["second"])): one["spearman"] for one in study["correlations"]}
    matrix = [[1.0 if a == b else known.get(frozenset((a, b)), 0.0) for b in names] for a in names]
    return Chart(
        title="Do the criteria agree?",
        caption="Spearman's rank correlation over all heads, with the 95% bootstrap interval over heads.",
        name="correlations",
        pictures=[heat_map(matrix, title="Rank correlation", rows_named=names, columns_named=names, formatted=form)],
        headings=["Criteria", "Spearman", "Interval"],
        rows=[
            [
                Cell(f"{one['first']}, {one['second']}"),
                number(one["spearman"], form),
                Cell(f"{one['low']:.2f} to {one['high']:.2f}"),
            ]
            for one in study["correlations"]
        ],
    )
