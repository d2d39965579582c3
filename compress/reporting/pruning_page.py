"""Report of ``compress prune``: size, speed and accuracy after each removal."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from compress.benchmarking.results.formatting import (
    count,
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
from compress.reporting.curves import Chart, pruning_curve
from compress.reporting.rendering import StudyPage, quality
from compress.reporting.svg import Bar, Picture, heat_map, waterfall_chart
from compress.reporting.tables import Cell, number

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


def view(found: Mapping[str, Any]) -> StudyPage:
    """Return the page."""
    runtimes = dict.fromkeys(speed["runtime"] for speed in found["speeds"])
    contents = [_removals(found, runtime) for runtime in runtimes or ("",)]
    if found["curve"]:
        contents.append(_curve(found))
    whole, left = (found["cuts"][end]["architecture"] for end in (0, -1))
    contents += [_widths(title, key, whole, left) for key, title in WIDTHS.items() if left.get(key) != whole.get(key)]
    return StudyPage(f"What was removed from {found['model']}", "compress prune", verdict(found), contents)


def verdict(found: Mapping[str, Any]) -> list[str]:
    """Return what was removed, how fast the rest is, and what it costs, a sentence each."""
    first, last, metric = found["cuts"][0], found["cuts"][-1], found["metric"]
    chosen = {"heads", "neurons"} & {cut["removal"] for cut in found["cuts"]}
    sentences = [
        f"Removed: {removed(found['cuts'])}; {100 * last['parameters'] / first['parameters']:.0f}% of "
        f"{count(first['parameters'])} parameters are left."
        + (f" Heads and neurons were chosen by the criterion {found['criterion']}." if chosen else "")
    ]
    for batch_size in dict.fromkeys(speed["batch_size"] for speed in found["speeds"]):
        at = [speed for speed in found["speeds"] if speed["batch_size"] == batch_size]
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
    """Say what else the rows that judge were used for."""
    if found["split"] != "validation":
        return "The model was fitted on such rows, which flatters; give others with --validation."
    chosen = ["where to stop"] if found.get("max_accuracy_drop") else []
    chosen += ["the best checkpoint"] if found["cuts"][-1]["removal"] == "recovery" else []
    if not chosen:
        return "Nothing was chosen by these rows."
    return f"These rows also chose {' and '.join(chosen)}: report on others, with 'compress benchmark'."


def removed(cuts: Sequence[Mapping[str, Any]]) -> str:
    """Return what went, in words: ``2 of 6 layers, 24 of 48 heads``."""
    return ", ".join(
        f"{cut['removed']:,} of {plural(cut['of'], UNITS[cut['removal']])}" for cut in cuts if cut["removal"] in UNITS
    )


def _word(removal: str) -> str:
    return WORDS.get(removal, removal)


def _interval(speed: Mapping[str, Any]) -> Interval:
    return Interval(speed["speedup"], speed["low"], speed["high"])


def _removals(found: Mapping[str, Any], runtime: str) -> Chart:
    speeds = {(s["name"], s["batch_size"]): s for s in found["speeds"] if s["runtime"] == runtime}
    sizes = list(dict.fromkeys(size for _, size in speeds))
    rows, last = [], "nothing"
    for cut in found["cuts"]:
        last = last if cut["removal"] == "recovery" else cut["removal"]  # which changes no shape and no speed
        of = f"{cut['removed']:,} of {cut['of']:,}" if cut["of"] else ""
        row = [
            Cell(_word(cut["removal"]), f"{of}, weights trained" if of and cut["trained"] else of),
            number(cut["parameters"], count),
            number(cut["flops"], lambda flops: f"{flops / 1e9:.3g}"),
        ]
        for speed in (speeds[last, size] for size in sizes):
            small = f"{milliseconds(speed['latency_ms'])}, {speed_span(_interval(speed), times)}"
            row.append(Cell(times(speed["speedup"]), small, speed["speedup"]))
        rows.append(row + quality(cut, found["metric"]))
    measured = "No speed was measured."
    if sizes:
        measured = (
            "Speeds are against the unpruned model in the same runtime, in turns on the same batches; recovery changes "
            "none."
        )
    return Chart(
        title=f"Each removal in {runtime}" if runtime else "Each removal",
        caption="Removals go on top of each other; operations are those of a row of "
        f"{found['cuts'][0]['tokens']} tokens, the median. {measured}",
        name=f"removals-{runtime}" if runtime else "removals",
        pictures=[_waterfall(found, speeds, sizes[0], runtime) if sizes else _weights(found)],
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


def _weights(found: Mapping[str, Any]) -> Picture:
    """Return the picture of what is shown without speeds: how many times fewer weights each removal left."""
    kept = [cut for cut in found["cuts"] if cut["removal"] != "recovery"]
    fewer = [(cut["removal"], kept[0]["parameters"] / cut["parameters"]) for cut in kept]
    bars = [Bar(_word(name), now, times(now / before)) for (_, before), (name, now) in itertools.pairwise(fewer)]
    bars.append(Bar("all together", fewer[-1][1], times(fewer[-1][1]), is_total=True))
    title = f"{found['name']}: how many times smaller"
    return waterfall_chart(bars, title=title, label="times as few weights as at first")


def _waterfall(found: Mapping[str, Any], speeds: Mapping[Any, Any], size: int, runtime: str) -> Picture:
    timed = [speed for (_, batch_size), speed in speeds.items() if batch_size == size]
    bars = [
        Bar(_word(now["name"]), now["speedup"], times(now["speedup"] / before["speedup"]))
        for before, now in itertools.pairwise(timed)
    ]
    bars.append(Bar("all together", timed[-1]["speedup"], with_span(_interval(timed[-1]), times), is_total=True))
    return waterfall_chart(bars, title=f"{found['name']} in {runtime}, batch {size}")


def _curve(found: Mapping[str, Any]) -> Chart:
    parts = [part for part in ("heads", "neurons") if f"{part}_removed" in found["curve"][0]]
    rows = []
    for point in found["curve"]:
        mark = "recovered" if point["recovered"] else "taken" if point["chosen"] else ""
        rows.append(
            [
                *(number(point[f"{part}_removed"], "{:,}".format) for part in parts),
                Cell(f"{100 * point['share_removed']:.0f}%", mark, point["share_removed"]),
                *quality(point, found["metric"]),
            ]
        )
    return Chart(
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
        rows=rows,
    )


def _widths(title: str, key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Chart:
    first, last = (one.get("kept_layers") or list(range(len(before[key]))) for one in (before, after))
    left = dict(zip(last, after[key], strict=True))
    rows = [[float(width), float(left.get(layer, 0))] for layer, width in zip(first, before[key], strict=True)]
    form = "{:,.0f}".format
    return Chart(
        title=f"{title} that are left",
        caption="Before and after, by layer of the unpruned model; 0 where the layer is gone.",
        name=f"{title.lower()}-left",
        pictures=[heat_map(rows, title=f"{title} by layer", columns_named=["before", "after"], formatted=form)],
        headings=["Layer", "Before", "After"],
        rows=[[Cell(str(layer)), *(number(value, form) for value in row)] for layer, row in enumerate(rows, 1)],
    )
