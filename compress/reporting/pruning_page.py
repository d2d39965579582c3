"""Report of ``compress prune``: size, speed and accuracy after each removal."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from compress.benchmarking.results.formatting import (
    NONE,
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
from compress.reporting.charts import heat_map
from compress.reporting.charts.pruning_curve import draw_curve
from compress.reporting.charts.svg import Picture
from compress.reporting.charts.waterfall import Bar, waterfall_chart
from compress.reporting.figure_page import Figure, FigurePage, quality
from compress.reporting.tables.cells import Cell

# Removal -> what stays of it, in the singular.
UNITS = {
    "vocabulary": "word piece",
    "layers": "layer",
    "heads": "head",
    "neurons": "neuron",
    "hidden": "hidden dimension",
}
WORDS = {"nothing": "unpruned", "neurons": "feed-forward neurons", "hidden": "hidden width"}


def view(found: Mapping[str, Any]) -> FigurePage:
    """Return the page."""
    figures = [_removals(found, runtime) for runtime in dict.fromkeys(speed["runtime"] for speed in found["speeds"])]
    figures = figures or [_removals(found, "")]
    if found["curve"]:
        figures.append(_curve(found))
    left = found["cuts"][-1]["architecture"]
    whole = found["cuts"][0]["architecture"]
    figures += [_widths(found, key) for key in ("heads_per_layer", "ffn_per_layer") if left.get(key) != whole.get(key)]
    return FigurePage(f"What was removed from {found['model']}", "compress prune", verdict(found), figures)


def verdict(found: Mapping[str, Any]) -> list[str]:
    """Return what was removed, how fast the rest is, and what it costs, a sentence each."""
    first, last = found["cuts"][0], found["cuts"][-1]
    told = [
        f"Removed: {removed(found['cuts'])}; {100 * last['parameters'] / first['parameters']:.0f}% of "
        f"{count(first['parameters'])} parameters are left."
    ]
    if {"heads", "neurons"} & {cut["removal"] for cut in found["cuts"]}:
        told[0] += f" Heads and neurons were chosen by the criterion {found['criterion']}."
    for batch_size in dict.fromkeys(speed["batch_size"] for speed in found["speeds"]):
        at = [s for s in found["speeds"] if s["batch_size"] == batch_size]
        ends = {speed["runtime"]: speed for speed in at}  # the last of each
        shown_speeds = ", ".join("{} ({}) in {}".format(*_times(speed), runtime) for runtime, speed in ends.items())
        told.append(
            f"Batch size {batch_size}: {shown_speeds}, each against the unpruned model in the same runtime, "
            f"{plural(at[0]['threads'], 'thread')}."
        )
    told.append(
        f"{found['metric'].capitalize()} {shown(last['value'], found['metric'])} on {found['rows']:,} rows of "
        f"{found['split']}: {points(last['points'])} points ({points(last['low'])} to {points(last['high'])}) to the "
        f"unpruned model. {_flattery(found)}"
    )
    if vocabulary := found.get("vocabulary"):
        anew = vocabulary["fallbacks"]
        told.append(
            f"{anew['words_changed']:,} of {plural(anew['words'], 'word')} of these rows "
            f"({100 * anew['word_share']:.2g}%), in {anew['texts_changed']:,} of {plural(anew['texts'], 'text')}, are "
            f"read as other pieces than before; {anew['words_unknown']:,} of them became unknown."
        )
    if drop := found.get("max_accuracy_drop"):
        told.append(
            f"As many heads and neurons went, in steps, as leave the whole interval above −{in_points(drop)} before "
            "any recovery."
        )
    if target := found.get("target"):
        told.append(
            f"Asked for {times(target['asked'])} at batch size {target['batch_size']}; when it was decided, "
            f"{with_span(Interval(target['value'], target['low'], target['high']), times)} was measured."
        )
    return told


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


def _removals(found: Mapping[str, Any], runtime: str) -> Figure:
    speeds = {(s["name"], s["batch_size"]): s for s in found["speeds"] if s["runtime"] == runtime}
    sizes = list(dict.fromkeys(size for _, size in speeds))
    rows, last = [], "nothing"
    for cut in found["cuts"]:
        last = last if cut["removal"] == "recovery" else cut["removal"]  # which changes no shape and no speed
        rows.append(
            [
                Cell(WORDS.get(cut["removal"], cut["removal"]), _of(cut)),
                Cell(count(cut["parameters"]), "", cut["parameters"]),
                Cell(NONE if cut["flops"] is None else f"{cut['flops'] / 1e9:.3g}", "", cut["flops"]),
                *(_speed(speeds[last, size]) for size in sizes),
                *quality(cut, found["metric"]),
            ]
        )
    told = (
        " Speeds are against the unpruned model in the same runtime, in turns on the same batches; recovery "
        "changes none."
        if sizes
        else " No speed was measured."
    )
    return Figure(
        f"Each removal in {runtime}" if runtime else "Each removal",
        "Removals go on top of each other; operations are those of a row of "
        f"{found['cuts'][0]['tokens']} tokens, the median.{told}",
        f"removals-{runtime}" if runtime else "removals",
        _waterfall(found, speeds, sizes[0], runtime) if sizes else _weights(found),
        [
            "Removed",
            "Parameters",
            "GFLOP a row",
            *(f"Batch {size}" for size in sizes),
            metric_title(found["metric"]),
            "Points",
        ],
        rows,
    )


def _weights(found: Mapping[str, Any]) -> Picture:
    """Return the picture of what is shown without speeds: how many times fewer weights each removal left."""
    kept = [cut for cut in found["cuts"] if cut["removal"] != "recovery"]
    fewer = [kept[0]["parameters"] / cut["parameters"] for cut in kept]
    bars = [
        Bar(WORDS.get(cut["removal"], cut["removal"]), now, times(now / before))
        for cut, before, now in zip(kept[1:], fewer[:-1], fewer[1:], strict=True)
    ]
    bars.append(Bar("all together", fewer[-1], times(fewer[-1]), is_total=True))
    title = f"{found['name']}: how many times smaller"
    return waterfall_chart(bars, title=title, label="times as few weights as at first")


def _waterfall(found: Mapping[str, Any], speeds: Mapping[Any, Any], size: int, runtime: str) -> Picture:
    timed = [speed for (_, batch_size), speed in speeds.items() if batch_size == size]
    bars = [
        Bar(WORDS.get(now["name"], now["name"]), now["speedup"], times(now["speedup"] / before["speedup"]))
        for before, now in itertools.pairwise(timed)
    ]
    bars.append(Bar("all together", timed[-1]["speedup"], "{} ({})".format(*_times(timed[-1])), is_total=True))
    return waterfall_chart(bars, title=f"{found['name']} in {runtime}, batch {size}")


def _curve(found: Mapping[str, Any]) -> Figure:
    parts = [part for part in ("heads", "neurons") if f"{part}_removed" in found["curve"][0]]
    return Figure(
        "Step by step",
        f"The metric, as more and more {' and '.join(parts)} of the layers that stay are masked; the share is of their "
        "weights. No weight is trained on the way.",
        "pruning_curve",
        draw_curve(found["name"], found["metric"], found["curve"]).picture,
        [*(f"{part.capitalize()} removed" for part in parts), "Share", metric_title(found["metric"]), "Points"],
        [
            [
                *(Cell(f"{point[f'{part}_removed']:,}", "", point[f"{part}_removed"]) for part in parts),
                Cell(f"{100 * point['share_removed']:.0f}%", _mark(point), point["share_removed"]),
                *quality(point, found["metric"]),
            ]
            for point in found["curve"]
        ],
    )


def _widths(found: Mapping[str, Any], key: str) -> Figure:
    title = {"heads_per_layer": "Heads", "ffn_per_layer": "Neurons"}[key]
    before, after = (found["cuts"][end]["architecture"] for end in (0, -1))
    first, last = (one.get("kept_layers") or list(range(len(before[key]))) for one in (before, after))
    left = dict(zip(last, after[key], strict=True))
    rows = [[float(width), float(left.get(number, 0))] for number, width in zip(first, before[key], strict=True)]
    return Figure(
        f"{title} that are left",
        "Before and after, by layer of the unpruned model; 0 where the layer is gone.",
        f"{title.lower()}-left",
        heat_map.draw(rows, title=f"{title} by layer", columns_named=["before", "after"], formatted="{:,.0f}".format),
        ["Layer", "Before", "After"],
        [[Cell(str(layer)), *(Cell(f"{value:,.0f}", "", value) for value in row)] for layer, row in enumerate(rows, 1)],
    )


def _mark(point: Mapping[str, Any]) -> str:
    return "recovered" if point["recovered"] else "taken" if point["chosen"] else ""


def _of(cut: Mapping[str, Any]) -> str:
    told = f"{cut['removed']:,} of {cut['of']:,}" if cut["of"] else ""
    return f"{told}, weights trained" if told and cut["trained"] else told


def _times(speed: Mapping[str, Any]) -> tuple[str, str]:
    """Return a speed-up and its interval."""
    return times(speed["speedup"]), speed_span(Interval(speed["speedup"], speed["low"], speed["high"]), times)


def _speed(speed: Mapping[str, Any]) -> Cell:
    value, interval = _times(speed)
    return Cell(value, f"{milliseconds(speed['latency_ms'])}, {interval}", speed["speedup"])
