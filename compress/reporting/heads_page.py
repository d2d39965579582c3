"""Report of ``compress heads``: importance of every head, as a page, tables and charts."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any

from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import NONE, in_percent, metric_title, plural, points, shown
from compress.reporting.charts import heat_map, svg
from compress.reporting.figure_page import Figure, FigurePage, quality
from compress.reporting.tables.cells import Cell

EVALUATED = frozenset(("oracle", "shapley"))  # criteria that compare what the model is worth
BUDGET = 1.0  # points of loss that verdicts are about
SIGNIFICANT = 0.01  # of Michel et al. 2019, here after Holm's correction for so many heads


def view(study: Mapping[str, Any]) -> FigurePage:
    """Return the page of a study."""
    significant = holm([one["mcnemar_p"] for one in study["ablation"]], SIGNIFICANT)
    figures = [_importance(study, name) for name in study["criteria"] if name != "random"]
    figures += [_ablation(study, significant), _one_head(study), _evolution(study)]
    if study["correlations"]:
        figures.append(_correlations(study))
    return FigurePage(f"The heads of {study['model']}", "compress heads", _verdict(study, significant), figures)


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
    heads, metric = sum(study["heads_per_layer"]), study["metric"]
    told = [
        f"{metric.capitalize()} of the whole model: {shown(study['value'], metric)} on "
        f"{study['validation_rows']:,} rows; heads were scored on {study['scoring_rows']:,} others.",
    ]
    if _is_tested(significant):
        told.append(
            f"{significant.count(True)} of {heads} heads change the share of right answers for certain when they alone "
            f"are removed (McNemar, Holm, p < {SIGNIFICANT:g})."
        )
    steps = [one for one in study["evolution"] if one["order"] == "gradient"]
    surely = list(takewhile(lambda one: one["low"] >= -BUDGET, steps))
    unsure = list(takewhile(lambda one: one["high"] >= 0, steps))
    rows = plural(study["validation_rows"], "row")
    told.append(
        f"In gradient order {_reached(surely) or 'no heads'} cost surely less than {BUDGET:g} point; "
        + (
            f"up to {_reached(unsure)} {rows} cannot tell a loss from chance. "
            if _reached(unsure)
            else f"the first to go are a loss for certain on {rows}. "
        )
        + "No weight was trained meanwhile: "
        "'compress prune --recover' wins some of it back."
    )
    return told


def _reached(steps: Sequence[Mapping[str, Any]]) -> str:
    last = steps[-1] if steps else {"heads_removed": 0}
    if not last["heads_removed"]:
        return ""
    interval = f"{points(last['points'])} points, {points(last['low'])} to {points(last['high'])}"
    return f"{plural(last['heads_removed'], 'head')} ({100 * last['share_removed']:.0f}%: {interval})"


def _importance(study: Mapping[str, Any], name: str) -> Figure:
    rows = study["criteria"][name]
    widest = max(map(len, rows))
    by = f" by the {study['measure']} of the scoring rows" if name in EVALUATED else ""
    cells = [
        [Cell(f"layer {layer + 1}"), *(Cell(f"{v:.4g}", "", v) for v in row), *[Cell(NONE)] * (widest - len(row))]
        for layer, row in enumerate(rows)
    ]
    return Figure(
        f"Importance by {name}",
        f"Raw scores{by}, see 'compress show {name}'. Dark matters most.",
        f"importance-{name}",
        heat_map.draw(rows, title=f"Importance by {name}"),
        ["Layer", *(f"head {head + 1}" for head in range(widest))],
        cells,
    )


def _is_tested(significant: Sequence[bool | None]) -> bool:
    return any(certain is not None for certain in significant)


def _ablation(study: Mapping[str, Any], significant: Sequence[bool | None]) -> Figure:
    found = list(zip(study["ablation"], significant, strict=True))
    series = [
        svg.Series(title, [(_place(study, one), one["points"]) for one, certain in found if certain is wanted])
        for title, wanted in (("not tested", None), ("within chance", False), ("significant", True))
    ]
    test = " The p of McNemar's test is as it is; significance is after Holm's correction."
    return Figure(
        "One head removed",
        "Every head alone is removed, and all others stay: the difference to the whole model, by layer, the first head "
        "of a layer on the left." + test * _is_tested(significant),
        "ablation",
        svg.line_chart(
            [one for one in series if one.points],
            title="One head removed",
            x_label="layer",
            y_label="difference (points)",
            lines=False,
        ),
        ["Layer", "Head", metric_title(study["metric"]), "Points", "McNemar p", "Significant"],
        [
            [
                Cell(str(one["layer"] + 1)),
                Cell(str(one["head"] + 1)),
                *quality(one, study["metric"]),
                Cell(NONE if one["mcnemar_p"] is None else f"{one['mcnemar_p']:.2g}", "", one["mcnemar_p"]),
                Cell(NONE if certain is None else "yes" if certain else "no"),
            ]
            for one, certain in found
        ],
    )


def _place(study: Mapping[str, Any], one: Mapping[str, Any]) -> float:
    """Return where a head is drawn: around its layer, so that heads of one value do not hide each other."""
    count = study["heads_per_layer"][one["layer"]]
    return float(one["layer"] + 1 + 0.8 * ((one["head"] + 0.5) / count - 0.5))


def _one_head(study: Mapping[str, Any]) -> Figure:
    found = study["one_head"]
    series = [
        svg.Series(
            "best head alone",
            [(one["layer"] + 1, one["points"]) for one in found],
            [(one["low"], one["high"]) for one in found],
        )
    ]
    return Figure(
        "One head kept",
        "In one layer at a time all heads but one are removed: the one that is best on the scoring rows.",
        "one_head",
        svg.line_chart(
            series, title="One head kept in a layer", x_label="layer", y_label="difference (points)", lines=False
        ),
        ["Layer", "Head that stays", metric_title(study["metric"]), "Points"],
        [[Cell(str(one["layer"] + 1)), Cell(str(one["head"] + 1)), *quality(one, study["metric"])] for one in found],
    )


def _evolution(study: Mapping[str, Any]) -> Figure:
    scale = 100 if in_percent(study["metric"]) else 1
    series, rows = [], []
    for order, steps in grouped(study["evolution"], itemgetter("order")).items():
        by_count = grouped(steps, itemgetter("heads_removed"))
        means = [
            {key: sum(one[key] for one in same) / len(same) for key in ("share_removed", "value", "points")}
            for same in by_count.values()
        ]
        several = len({one["seed"] for one in steps}) > 1
        # Of several random orders the bar is from the lowest to the highest; of one it is the interval over rows.
        bars = [
            (min(one["value"] for one in same), max(one["value"] for one in same))
            if several
            else tuple(_at_most(study, study["value"] + same[0][end] / 100) for end in ("low", "high"))
            for same in by_count.values()
        ]
        title = f"{order} (mean of {len({one['seed'] for one in steps})})" if several else order
        series.append(
            svg.Series(
                title,
                [(100 * one["share_removed"], scale * one["value"]) for one in means],
                [(scale * low, scale * high) for low, high in bars],
            )
        )
        rows += [
            [
                Cell(order, f"seed {one['seed']}" if several else ""),
                Cell(str(one["heads_removed"])),
                Cell(f"{100 * one['share_removed']:.0f}%", "", one["share_removed"]),
                *quality(one, study["metric"]),
            ]
            for one in steps
        ]
    return Figure(
        "Fewer and fewer heads",
        "Heads go in an order, until each layer has one. Bars: 95% interval of the difference to the whole model; of "
        "random orders the lowest and the highest.",
        "evolution",
        svg.line_chart(
            series,
            title="Fewer and fewer heads",
            x_label="heads removed (%)",
            y_label=metric_title(study["metric"]),
        ),
        ["Order", "Heads removed", "Share", metric_title(study["metric"]), "Points"],
        rows,
    )


def _at_most(study: Mapping[str, Any], value: float) -> float:
    """Return an end of an interval, which no share of right answers is beyond."""
    return min(1.0, max(0.0, value)) if in_percent(study["metric"]) else value


def _correlations(study: Mapping[str, Any]) -> Figure:
    names = list(study["criteria"])
    known = {(one["first"], one["second"]): one["spearman"] for one in study["correlations"]}
    matrix = [[1.0 if a == b else known.get((a, b), known.get((b, a), 0.0)) for b in names] for a in names]
    return Figure(
        "Do the criteria agree?",
        "Spearman's rank correlation over all heads, with the 95% bootstrap interval over heads.",
        "correlations",
        heat_map.draw(
            matrix, title="Rank correlation", rows_named=names, columns_named=names, formatted="{:.2f}".format
        ),
        ["Criteria", "Spearman", "Interval"],
        [
            [
                Cell(f"{one['first']}, {one['second']}"),
                Cell(f"{one['spearman']:.2f}", "", one["spearman"]),
                Cell(f"{one['low']:.2f} to {one['high']:.2f}"),
            ]
            for one in study["correlations"]
        ],
    )
