"""Tables of the committed results of studies, as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from statistics import median

from compress.benchmarking.results.files import Result, Results, grouped
from compress.benchmarking.results.formatting import (
    kind_text,
    megabytes,
    plural,
    points,
    shown,
    shown_metric,
    table,
    times,
)
from compress.benchmarking.results.schema import FIELDS, Measurement
from compress.escaping import Markdown, code_span, markdown_text
from compress.recipes.catalogue import BELOW_CONTROL, NO_FIGURE, STUDENT_HEADINGS, behind, in_short, students
from compress.reporting import tables
from compress.reporting.pages import ReportTable
from compress.reporting.sections import Measured, gather
from compress.reporting.survey import HEADINGS, survey

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
FULL = ("table1-full-fourth", "table1-full", "table1-full-xeon", "table1-full-third")  # each with a teacher of its own
SURVEY_STUDIES = (
    *FULL,
    "table1-from-scratch",
    "front",
    "table1",
    "table2",
    "table2-5000-labels",
    "table2-banking77",
    "table2-ag-news",
    "table2-minilm-l3",
    "table2-mpnet-base",
    "ud",
    "mrpc",
    "sts",
)  # the first of a recipe is listed
# What the same recipes gain in different settings: the heading of a column, and the studies in which it is looked for.
GAINS = {
    "SST-2, 500 labels": ("table2",),
    "SST-2, 500 labels, another teacher, on a GPU": ("table2-gpu",),
    "SST-2, 5,000 labels": ("table2-5000-labels",),
    "AG News, 500 labels": ("table2-ag-news",),
    "Banking77, 1,000 labels": ("table2-banking77",),
    "SST-2, 500 labels, teacher of 3 layers": ("table2-minilm-l3",),
    "SST-2, 500 labels, teacher of BERT-base's size": ("table2-mpnet-base",),
    "SST-2, 64,000 labels, 4,000 steps": FULL,
    "SST-2, 64,000 labels, 15,000 steps": ("table1-from-scratch",),
}
METRIC = tables.SEEDS_HEADINGS.index("Metric, mean")
NOTES = tables.SEEDS_HEADINGS.index("Notes")


def fastest_rows(study: str, runtime: str = "") -> tuple[Result, list[Result]]:
    """Return the reference of a study's speed-ups, and every other model in its fastest runtime, or the one given."""
    rows = Results.open(RESULTS / f"{study}.jsonl").configurations
    threads = min(row.small_batch.threads for row in rows)
    rows = [row for row in rows if row.small_batch.threads == threads and row.small_batch.length is None]
    rows = [row for row in rows if row.small_batch.padding == "longest" and runtime in {"", row.small_batch.runtime}]
    teacher = next(row for row in rows if _is_reference(row.small_batch, runtime))
    fastest: dict[tuple[str, str, str], Result] = {}
    for row in sorted(rows, key=lambda row: -row.small_batch.speedups.value):
        line = row.small_batch
        fastest.setdefault((line.kind, line.model, line.runtime if line.kind == "competitor" else ""), row)
    kinds = ("teacher", "model", "cascade", "control", "baseline", "competitor", "reference-model")
    chosen = sorted(
        fastest.values(), key=lambda row: (kinds.index(row.small_batch.kind), -row.small_batch.speedups.value)
    )
    return teacher, [row for row in chosen if row is not teacher]


def results_table(name: str) -> str:
    """Return a study's committed results as Markdown: everything in the runtime where it is fastest at batch 1.

    Args:
        name: ``STUDY``, or ``STUDY:RUNTIME``: everything in that one, and as fast as it is against the teacher there.
    """
    study, _, runtime = name.partition(":")
    teacher, rows = fastest_rows(study, runtime)
    head = teacher.small_batch
    sizes = [line.batch_size for line in teacher.lines]
    speeds = [f"speed-up, batch {sizes[0]}", *(f"batch {size}" for size in sizes[1:])]
    where = f"all in {runtime}, speed-ups against the teacher there"
    if not runtime:
        speeds.insert(1, "model alone")
        where = f"each in its fastest runtime at batch {sizes[0]}; speed-ups against the teacher in torch float32"
    headings = ["", "runs in", head.metric_name, "points to the teacher", "kept", "weights", *speeds]
    made = table(headings, [_result_cells(row, sizes, runtime) for row in [teacher, *rows]], left=2)
    note = (
        f"{head.data}, n = {head.metric_rows:,}; 95% intervals; {where}, {plural(head.threads, 'thread')}, "
        f"{'of the models alone' if runtime else head.reach}, "
        f"on {head.host['cpu']} (family/model {head.host['cpu_family_model']}; {', '.join(head.host['cpu_flags'])}). "
        f"Made by `{head.command}`; every runtime is in [{study}.jsonl](benchmarks/results/{study}.jsonl)."
    )
    return f"{made}\n\n{note}\n"


def _result_cells(row: Result, sizes: list[int], runtime: str) -> list[str]:
    line = row.small_batch
    by_size = {one.batch_size: one for one in row.lines}
    kind = "" if line.kind == "teacher" else kind_text(line)
    note = f" ({kind})" if kind else ""
    metric = difference = kept = NO_FIGURE
    if line.metric is not None:
        low, high = (shown(end, line.metric_name, digits=1) for end in line.figure("metric")[1:])
        metric = f"{shown_metric(line)} ({low} to {high})"
        kept = f"{line.metric_kept_percent:.1f}%" if line.metric_kept_percent is not None else NO_FIGURE
    if line.metric is not None and line.difference is not None and not line.is_reference:
        difference = "{} ({} to {})".format(*map(points, line.difference))
        if line.metric_kept_percent is not None:
            # The ends of the difference, as shares of the teacher's metric.
            whole = line.metric - line.difference.value / 100
            kept += f" ({100 + line.difference.low / whole:.1f}% to {100 + line.difference.high / whole:.1f}%)"
    speedups = [_speedup(by_size.get(size), runtime) for size in sizes]
    if not runtime:
        alone = NO_FIGURE if line.tokenizer_inside else _within(line, "speedup")
        speedups.insert(1, "×1" if line.is_reference else alone)
    weights = megabytes(line.size_bytes) if line.size_bytes else NO_FIGURE
    return [f"{line.model}{note}", line.runtime, metric, difference, kept, weights, *speedups]


def _is_reference(line: Measurement, runtime: str) -> bool:
    """Tell whether speed-ups are against this line: the teacher in torch, or in the one runtime of the table."""
    return line.kind == "teacher" and line.runtime == runtime if runtime else line.is_reference


def _speedup(line: Measurement | None, runtime: str) -> str:
    if line is None:
        return NO_FIGURE
    if _is_reference(line, runtime):
        return "×1"
    return _within(line, "speedup_same_runtime" if runtime else line.speedup_field)


def _within(line: Measurement, speed: str) -> str:
    return "{} ({} to {})".format(*(times(getattr(line, speed + end)) for end in ("", "_low", "_high")))


def students_table() -> str:
    """Return what ``compress list students`` says, as Markdown."""
    known = students()
    below = "".join(f"* `{one.name}`: {markdown_text(why)}\n" for one in known if (why := behind(one)))
    made = table(STUDENT_HEADINGS, [in_short(one) for one in known])
    return made + f"\n\n{BELOW_CONTROL}\n\n{below}"


def survey_figures(studies: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    """Return what was measured of every student recipe, one entry a data set and machine."""
    figures: dict[str, list[dict[str, str]]] = {}
    for measured in (part for study in studies for part in _figures(study)):
        for recipe, found in measured.items():
            figures.setdefault(recipe, []).append(found)
    return figures


@cache
def _figures(study: str) -> list[dict[str, dict[str, str]]]:
    """Return what was measured in a study by recipe, one entry a data set and machine."""
    made = [(survey(part.small_batches, part.lines, unlisted=True), part.small_batches[0]) for part in committed(study)]
    return [published_in_short(one, line) for one, line in made if one]


def published_in_short(found: ReportTable, line: Measurement) -> dict[str, dict[str, str]]:
    """Return by recipe what was measured, as text by column, with what the data and the metric are called."""
    about = {"data": line.data, "metric_name": line.metric_name or "", "study": line.study}
    measured = [key for key in HEADINGS if key not in {"system", "published", "recipe"}]
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in found.rows]
    return {
        (name := row["recipe"].text): {
            **about,
            "made_by": re.sub(r"( --only \S+)+", f" --only {name}", line.command),  # where some were named, it alone
            **{key: str(row[key]) for key in measured},
        }
        for row in rows
        if row["metric"].text != NO_FIGURE  # neither what was not measured, nor a reference model
    }


def gains_table() -> str:
    """Return what distillation added to each recipe in each setting, the largest gains in the first one first."""
    columns = {}
    for heading, studies in GAINS.items():
        found = {
            recipe: [one for one in figures if one["worth"] != NO_FIGURE]  # those with a control
            for recipe, figures in survey_figures(studies).items()
        }
        columns[heading] = {recipe: (gains[0]["worth"], gains[0]["seeds"]) for recipe, gains in found.items() if gains}

    def order(recipe: str) -> tuple[int, float, str]:
        """Order by the gain in the first setting that a recipe was measured in."""
        place, (gain, _) = next(
            (place, gains[recipe]) for place, gains in enumerate(columns.values()) if recipe in gains
        )
        return place, -float(gain.partition(" (")[0].replace("−", "-")), recipe

    recipes = sorted({recipe for gains in columns.values() for recipe in gains}, key=order)
    rows = [
        [Markdown(f"`{recipe}`"), *(_gain_cell(*gains.get(recipe, (NO_FIGURE, "1"))) for gains in columns.values())]
        for recipe in recipes
    ]
    above = [[_interval_ends(gain)[0].startswith("+") for gain, _ in gains.values()] for gains in columns.values()]
    counts = ["interval above 0", *(f"{sum(one)} of {len(one)}" for one in above)]
    return table(["Recipe", *columns], [*rows, counts]) + "\n"


def _interval_ends(gain: str) -> tuple[str, str]:
    """Return the ends of the interval of a gain, as they are written."""
    low, _, high = gain.partition(" (")[2].rstrip(")").partition(" to ")
    return low, high


def _gain_cell(gain: str, seeds: str) -> str:
    """Set a gain in bold type if its interval does not contain 0, and say of how many seeds it is the mean."""
    low, high = _interval_ends(gain)
    text = f"**{gain}**" if low.startswith("+") or high.startswith("−") else gain
    return Markdown(text if seeds == "1" else f"{text}, {seeds} seeds")


def committed(study: str) -> list[Measured]:
    """Return a study's committed results, none where there are none yet."""
    path = RESULTS / f"{study}.jsonl"
    return gather(Results.open(path)) if path.is_file() else []


def field_table() -> str:
    """Return what each field of a result line means."""
    parts = []
    for group, fields in grouped(FIELDS.values(), attrgetter("group")).items():
        rows = [
            [
                code_span(field.name),
                field.kind + (" or null" if field.null else "") + (", may be left out" if field.optional else ""),
                Markdown(field.meaning),
            ]
            for field in fields
        ]
        parts.append(f"**{group}**\n\n{table(['field', 'type', 'meaning'], rows, left=3)}\n")
    return "\n".join(parts)


def runtimes_sentence() -> str:
    """Return by how much ONNX Runtime is faster than torch for the compressed models of all committed results."""
    ratios = []
    for path in sorted(RESULTS.glob("*.jsonl")):
        found: dict[tuple[str, int], dict[str, float]] = {}
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if line.get("batch_size") == 1 and line.get("device") == "cpu" and line.get("kind") == "model":
                key = (line["model"], line["threads"])
                found.setdefault(key, {})[line["runtime"]] = line["latency_p50_ms"]
        ratios += [own["torch"] / own["onnxruntime"] for own in found.values() if {"torch", "onnxruntime"} <= {*own}]
    faster = sum(ratio > 1 for ratio in ratios)
    return (
        f"ONNX Runtime is faster than torch in {faster} of the {len(ratios)} measurements of a compressed model that\n"
        "the committed results have of both, one row at a time on a CPU, half of them by at least "
        f"{times(median(ratios))}.\n"
    )


def tail_table(study: str) -> str:
    """Return the latencies of a study's cascades as Markdown: their median is that of the first member."""
    rows = []
    for line in (row.small_batch for row in fastest_rows(study)[1]):
        if line.kind == "cascade":
            shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(line.members, line.answered, strict=True))
            mean = "{:.3f} ({:.3f} to {:.3f})".format(*line.figure("latency_mean_ms"))
            percentiles = (line.latency_p50_ms, line.latency_p95_ms, line.latency_p99_ms)
            rows.append([line.model, shares, mean, *(f"{value:.3f}" for value in percentiles)])
    headings = ["cascade", "rows by member", "mean, ms", "median", "95th percentile", "99th"]
    return table(headings, rows, left=2) + "\n"


def gpu_table() -> str:
    """Return the committed results of gpu.py as Markdown."""
    found = Results.open(RESULTS / "gpu.jsonl").configurations
    head = found[0].small_batch
    sizes = [line.batch_size for line in found[0].lines]
    rows = []
    for row in found:
        line, largest = row.small_batch, row.lines[-1]
        speeds: list[str] = []
        for one in row.lines:
            speeds += [f"{one.latency_p50_ms:.2f}", "×1" if one.is_reference else _within(one, "speedup")]
        energy = f"{1000 * largest.energy_joules_per_row:.1f}" if largest.energy_joules_per_row else NO_FIGURE
        rows.append([line.model, line.runtime, shown_metric(line), *speeds, energy])
    columns = [f"batch {size}: {what}" for size in sizes for what in ("median, ms", "as fast")]
    headings = ["", "runs in", head.metric_name, *columns, f"joules for 1,000 rows, batch {sizes[-1]}"]
    peaks = ", ".join(
        f"{peak:.0f} in {line.runtime.removeprefix('torch-').replace('torch', 'float32')}"
        for line in (row.small_batch for row in found)
        if line.kind == "teacher" and line.runtime != "torch-cuda-graphs" and (peak := line.matmul_peak_tflops)
    )
    note = (
        f"{head.data}, n = {head.metric_rows:,}; models alone, against the teacher in torch float32, 95% intervals "
        f"over at most {max(line.rounds for row in found for line in row.lines)} rounds; {head.host['gpu'][0]}, torch "
        f"{head.versions['torch']}. Fastest matrix products, TFLOP/s: {peaks}. Made by `{head.command}`."
    )
    return f"{table(headings, rows, left=2)}\n\n{note}\n"


TABLES: dict[str, Callable[..., str]] = {
    "fields": field_table,
    "gains": gains_table,
    "gpu": gpu_table,
    "results": results_table,
    "runtimes": runtimes_sentence,
    "students": students_table,
    "tail": tail_table,
}
