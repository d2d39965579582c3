"""Pages of ``compress heads``, on the importance of heads, and ``compress prune``, on what each removal brought."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from operator import itemgetter
from typing import Any

from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import (
    count,
    in_percent,
    in_points,
    metric_title,
    milliseconds,
    plural,
    points,
    shown,
    speed_span,
    times,
    with_span,
)
from compress.inference.speedup_intervals import Interval
from compress.reporting.curves import pruning_curve
from compress.reporting.pages import EMPTY, Cell, ReportTable, StagePage, integer, number, quality
from compress.reporting.svg import Bar, Picture, Series, heat_map, line_chart, waterfall_chart

EVALUATED = frozenset(("oracle", "shapley"))  # criteria that compare what the model is worth
BUDGET = 1.0  # points of loss that verdicts are about
SIGNIFICANT = 0.01  # of Michel et al. 2019, here after Holm's correction for so many heads
POINTS = "difference (points)"
# Removal -> what stays of it, in the singular.
UNITS = {
    "vocabulary": "word piece",
    "layers": "layer",
    "heads": "head",
    "neurons": "neuron",
    "hidden": "hidden dimension",
}
WORDS = {"nothing": "unpruned", "neurons": "feed-forward neurons", "hidden": "hidden width"}
WIDTHS = {"heads_per_layer": "Heads", "ffn_per_layer": "Neurons"}


def heads_page(study: Mapping[str, Any]) -> StagePage:
    significant = holm([one["mcnemar_p"] for one in study["ablation"]], SIGNIFICANT)
    contents = [_importance(study, name) for name in study["criteria"] if name != "random"]
    contents += [_ablation(study, significant), _one_head(study), _evolution(study)]
    contents += [_correlations(study)] if study["correlations"] else []
    return StagePage(f"The heads of {study['model']}", "compress heads", _heads_verdict(study, significant), contents)


def holm(p_values: Sequence[float | None], level: float) -> list[bool | None]:
    """Return which of several tests are significant together (Holm 1979); None where no test was made."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    tests = takewhile(lambda test: test[1][0] <= level / (len(order) - test[0]), enumerate(order))
    significant = {index for _, (_, index) in tests}
    return [None if p is None else index in significant for index, p in enumerate(p_values)]


def _heads_verdict(study: Mapping[str, Any], significant: Sequence[bool | None]) -> list[str]:
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


def _importance(study: Mapping[str, Any], name: str) -> ReportTable:
    rows, title = study["criteria"][name], f"Importance by {name}"
    widest = max(map(len, rows))
    by = f" by the {study['measure']} of the scoring rows" if name in EVALUATED else ""
    return ReportTable(
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


def _ablation(study: Mapping[str, Any], significant: Sequence[bool | None]) -> ReportTable:
    found = list(zip(study["ablation"], significant, strict=True))

    def place(one: Mapping[str, Any]) -> float:
        """Return where a head is drawn: around its layer, so that heads of one value do not hide each other."""
        share = (one["head"] + 0.5) / study["heads_per_layer"][one["layer"]]
        return float(one["layer"] + 1 + 0.8 * (share - 0.5))

    verdicts = {None: "not tested", False: "within chance", True: "significant"}
    series = [
        Series(name, [(place(one), one["points"]) for one, certain in found if certain is wanted])
        for wanted, name in verdicts.items()
        if wanted in significant
    ]
    test = " The p of McNemar's test is as it is; significance is after Holm's correction."
    return ReportTable(
        title="One head removed",
        caption="Every head alone is removed, and all others stay: the difference to the whole model, by layer, the "
        "first head of a layer on the left." + test * (set(significant) != {None}),
        name="ablation",
        pictures=[line_chart(series, title="One head removed", x_label="layer", y_label=POINTS, lines=False)],
        headings=["Layer", "Head", metric_title(study["metric"]), "Points", "McNemar p", "Significant"],
        rows=[
            [
                *_place(one),
                *quality(one, study["metric"]),
                number(one["mcnemar_p"], "{:.2g}".format),
                EMPTY if certain is None else Cell("yes" if certain else "no"),
            ]
            for one, certain in found
        ],
    )


def _place(one: Mapping[str, Any]) -> list[Cell]:
    return [Cell(str(one[key] + 1)) for key in ("layer", "head")]


def _one_head(study: Mapping[str, Any]) -> ReportTable:
    found, title = study["one_head"], "One head kept in a layer"
    drawn = [(one["layer"] + 1, one["points"]) for one in found]
    series = [Series("best head alone", drawn, [(one["low"], one["high"]) for one in found])]
    return ReportTable(
        title="One head kept",
        caption="In one layer at a time all heads but one are removed: the one that is best on the scoring rows.",
        name="one_head",
        pictures=[line_chart(series, title=title, x_label="layer", y_label=POINTS, lines=False)],
        headings=["Layer", "Head that stays", metric_title(study["metric"]), "Points"],
        rows=[[*_place(one), *quality(one, study["metric"])] for one in found],
    )


def _evolution(study: Mapping[str, Any]) -> ReportTable:
    metric, title = metric_title(study["metric"]), "Fewer and fewer heads"
    # No share of right answers is beyond these; a correlation has no such bounds.
    lowest, highest, scale = (0.0, 1.0, 100) if in_percent(study["metric"]) else (float("-inf"), float("inf"), 1)
    series, rows = [], []
    for order, steps in grouped(study["evolution"], itemgetter("order")).items():
        seeds, drawn, bars = len({one["seed"] for one in steps}), [], []
        for same in grouped(steps, itemgetter("heads_removed")).values():
            values = [one["value"] for one in same]
            # Of several random orders the bar is from the lowest to the highest; of one it is the interval over rows.
            ends = [min(highest, max(lowest, study["value"] + same[0][end] / 100)) for end in ("low", "high")]
            low, high = (min(values), max(values)) if seeds > 1 else ends
            drawn.append((100 * same[0]["share_removed"], scale * sum(values) / len(values)))
            bars.append((scale * low, scale * high))
        series.append(Series(f"{order} (mean of {seeds})" if seeds > 1 else order, drawn, bars))
        rows += [
            [
                Cell(order, f"seed {one['seed']}" if seeds > 1 else ""),
                Cell(str(one["heads_removed"])),
                number(one["share_removed"], "{:.0%}".format),
                *quality(one, study["metric"]),
            ]
            for one in steps
        ]
    return ReportTable(
        title=title,
        caption="Heads go in an order, until each layer has one. Bars: 95% interval of the difference to the whole "
        "model; of random orders the lowest and the highest.",
        name="evolution",
        pictures=[line_chart(series, title=title, x_label="heads removed (%)", y_label=metric)],
        headings=["Order", "Heads removed", "Share", metric, "Points"],
        rows=rows,
    )


def _correlations(study: Mapping[str, Any]) -> ReportTable:
    names, form = list(study["criteria"]), "{:.2f}".format
    known = {frozenset((one["first"], one["second"])): one["spearman"] for one in study["correlations"]}
    matrix = [[1.0 if a == b else known.get(frozenset((a, b)), 0.0) for b in names] for a in names]
    return ReportTable(
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


def pruning_page(found: Mapping[str, Any]) -> StagePage:
    """Return the page of a pruned model: size, speed and accuracy after each removal."""
    runtimes = dict.fromkeys(speed["runtime"] for speed in found["speeds"])
    whole, left = (found["cuts"][end]["architecture"] for end in (0, -1))
    contents = [
        *(_removals(found, runtime) for runtime in runtimes or ("",)),
        *([_curve(found)] if found["curve"] else []),
        *(_widths(title, key, whole, left) for key, title in WIDTHS.items() if left.get(key) != whole.get(key)),
    ]
    return StagePage(f"What was removed from {found['model']}", "compress prune", _pruning_verdict(found), contents)


def _pruning_verdict(found: Mapping[str, Any]) -> list[str]:
    first, last, metric = found["cuts"][0], found["cuts"][-1], found["metric"]
    chosen = {"heads", "neurons"} & {cut["removal"] for cut in found["cuts"]}
    sentences = [
        f"Removed: {removed(found['cuts'])}; {100 * last['parameters'] / first['parameters']:.0f}% of "
        f"{count(first['parameters'])} parameters are left."
        + (f" Heads and neurons were chosen by the criterion {found['criterion']}." if chosen else "")
    ]
    for batch_size, at in grouped(found["speeds"], itemgetter("batch_size")).items():
        last_of = {speed["runtime"]: with_span(_interval(speed), times) for speed in at}
        speeds = ", ".join(f"{speed} in {runtime}" for runtime, speed in last_of.items())
        sentences.append(
            f"Batch size {batch_size}: {speeds}, each against the unpruned model in the same runtime, "
            f"{plural(at[0]['threads'], 'thread')}."
        )
    sentences.append(
        f"{metric.capitalize()} {shown(last['value'], metric)} on {found['rows']:,} rows of {found['split']}: "
        f"{points(last['points'])} points ({points(last['low'])} to {points(last['high'])}) to the unpruned model. "
        f"{_flattery(found)}"
    )
    if vocabulary := found.get("vocabulary"):
        anew = vocabulary["fallbacks"]
        sentences.append(
            f"{anew['words_changed']:,} of {plural(anew['words'], 'word')} of these rows "
            f"({100 * anew['word_share']:.2g}%), in {anew['texts_changed']:,} of {plural(anew['texts'], 'text')}, are "
            f"read as other pieces than before; {anew['words_unknown']:,} of them became unknown."
        )
    if drop := found.get("max_accuracy_drop"):
        sentences.append(
            f"As many heads and neurons went, in steps, as leave the whole interval above −{in_points(drop)} before "
            "any recovery."
        )
    if target := found.get("target"):
        measured = with_span(Interval(target["value"], target["low"], target["high"]), times)
        sentences.append(
            f"Asked for {times(target['asked'])} at batch size {target['batch_size']}; when it was decided, {measured} "
            "was measured."
        )
    return sentences


def _flattery(found: Mapping[str, Any]) -> str:
    if found["split"] != "validation":
        return "The model was fitted on such rows, which flatters; give others with --validation."
    chosen = {
        "where to stop": found.get("max_accuracy_drop"),
        "the best checkpoint": found["cuts"][-1]["removal"] == "recovery",
    }
    if not any(chosen.values()):
        return "Nothing was chosen by these rows."
    what = " and ".join(filter(chosen.get, chosen))
    return f"These rows also chose {what}: report on others, with 'compress benchmark'."


def removed(cuts: Sequence[Mapping[str, Any]]) -> str:
    """Return what went, in words: ``2 of 6 layers, 24 of 48 heads``."""
    return ", ".join(
        f"{cut['removed']:,} of {plural(cut['of'], UNITS[cut['removal']])}" for cut in cuts if cut["removal"] in UNITS
    )


def _interval(speed: Mapping[str, Any]) -> Interval:
    return Interval(speed["speedup"], speed["low"], speed["high"])


def _removals(found: Mapping[str, Any], runtime: str) -> ReportTable:
    speeds = {(s["name"], s["batch_size"]): s for s in found["speeds"] if s["runtime"] == runtime}
    sizes = list(dict.fromkeys(size for _, size in speeds))
    rows, last = [], "nothing"
    for cut in found["cuts"]:
        last = last if cut["removal"] == "recovery" else cut["removal"]  # which changes no shape and no speed
        of = f"{cut['removed']:,} of {cut['of']:,}{', weights trained' * cut['trained']}" if cut["of"] else ""
        rows.append(
            [
                Cell(WORDS.get(cut["removal"], cut["removal"]), of),
                number(cut["parameters"], count),
                number(cut["flops"], lambda flops: f"{flops / 1e9:.3g}"),
                *(
                    Cell(
                        times(speed["speedup"]),
                        f"{milliseconds(speed['latency_ms'])}, {speed_span(_interval(speed), times)}",
                        speed["speedup"],
                    )
                    for speed in (speeds[last, size] for size in sizes)
                ),
                *quality(cut, found["metric"]),
            ]
        )
    measured = "No speed was measured."
    if sizes:
        measured = (
            "Speeds are against the unpruned model in the same runtime, in turns on the same batches; recovery changes "
            "none."
        )
    timed = [speed for (_, size), speed in speeds.items() if size in sizes[:1]]
    return ReportTable(
        title=f"Each removal in {runtime}" if runtime else "Each removal",
        caption="Removals go on top of each other; operations are those of a row of "
        f"{found['cuts'][0]['tokens']} tokens, the median. {measured}",
        name=f"removals-{runtime}" if runtime else "removals",
        pictures=[_waterfall(found, timed)],
        headings=[
            "Removed",
            "Parameters",
            "GFLOP a row",
            *(f"Batch {size}" for size in sizes),
            metric_title(found["metric"]),
            "Points",
        ],
        rows=rows,
    )


def _waterfall(found: Mapping[str, Any], timed: Sequence[Mapping[str, Any]]) -> Picture:
    """Show how much faster each removal made the model, or where nothing was timed how much smaller."""
    if timed:
        ends = [(speed["name"], speed["speedup"]) for speed in timed]
        total = with_span(_interval(timed[-1]), times)
        labels = {"title": f"{found['name']} in {timed[0]['runtime']}, batch {timed[0]['batch_size']}"}
    else:
        kept = [cut for cut in found["cuts"] if cut["removal"] != "recovery"]
        ends = [(cut["removal"], kept[0]["parameters"] / cut["parameters"]) for cut in kept]
        total = times(ends[-1][1])
        labels = {"title": f"{found['name']}: how many times smaller", "label": "times as few weights as at first"}
    bars = [Bar(WORDS.get(name, name), now, times(now / before)) for (_, before), (name, now) in pairwise(ends)]
    return waterfall_chart([*bars, Bar("all together", ends[-1][1], total, is_total=True)], **labels)


def _curve(found: Mapping[str, Any]) -> ReportTable:
    parts = [part for part in ("heads", "neurons") if f"{part}_removed" in found["curve"][0]]
    return ReportTable(
        title="Step by step",
        caption=f"The metric, as more and more {' and '.join(parts)} of the layers that stay are masked; the share is "
        "of their weights. No weight is trained on the way.",
        name="pruning_curve",
        pictures=pruning_curve(found["name"], found["metric"], found["curve"]).pictures,
        headings=[
            *(f"{part.capitalize()} removed" for part in parts),
            "Share",
            metric_title(found["metric"]),
            "Points",
        ],
        rows=[
            [
                *(integer(point[f"{part}_removed"]) for part in parts),
                number(
                    point["share_removed"],
                    "{:.0%}".format,
                    small="recovered" if point["recovered"] else "taken" if point["chosen"] else "",
                ),
                *quality(point, found["metric"]),
            ]
            for point in found["curve"]
        ],
    )


def _widths(title: str, key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> ReportTable:
    first, last = (one.get("kept_layers") or list(range(len(before[key]))) for one in (before, after))
    left = dict(zip(last, after[key], strict=True))
    rows = [[float(width), float(left.get(layer, 0))] for layer, width in zip(first, before[key], strict=True)]
    form = "{:,.0f}".format
    return ReportTable(
        title=f"{title} that are left",
        caption="Before and after, by layer of the unpruned model; 0 where the layer is gone.",
        name=f"{title.lower()}-left",
        pictures=[heat_map(rows, title=f"{title} by layer", columns_named=["before", "after"], formatted=form)],
        headings=["Layer", "Before", "After"],
        rows=[[Cell(str(layer)), *(number(value, form) for value in row)] for layer, row in enumerate(rows, 1)],
    )
