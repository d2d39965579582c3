"""Stage: turn results into one page for people (HTML, no network) and its twin for pull requests (Markdown)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.artifact import write_atomically
from compress.errors import CompressError
from compress.measuring.results import Measurement, Row, is_baseline, read_results, rows_of
from compress.reporting import plot
from compress.reporting.curves import draw_curve, read_curve
from compress.reporting.pareto import Point, pareto_chart
from compress.reporting.units import count, in_percent, megabytes, milliseconds, points, shown, times
from compress.reporting.wording import best_row, control_of, metric_title, verdict

HTML_NAME, MARKDOWN_NAME = "report.html", "report.md"
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_LIBRARIES_SHOWN = ("compress", "torch", "transformers", "onnxruntime", "openvino", "python")


@dataclass(frozen=True)
class Cell:
    """A cell of the table: what it shows, what it is sorted by, and a smaller second line."""

    text: str
    value: float | str
    small: str = ""


@dataclass(frozen=True)
class Section:
    """What may be compared: the rows of one data set on one host, device and thread count."""

    title: str
    sentences: list[str]
    tiles: list[tuple[str, str]]
    pictures: tuple[str, str]  # for a wide screen and for a narrow one
    logarithmic: bool
    headings: list[str]
    table: list[tuple[str, list[Cell]]]
    notes: list[str]


@dataclass(frozen=True)
class Origin:
    """One run of the benchmark: what was typed, when, on what."""

    facts: list[tuple[str, str]]
    command: str


def report(
    results: Sequence[str | Path],
    output: str | Path,
    *,
    curves: Sequence[str | Path] = (),
    title: str = "",
    force: bool = False,
) -> Path:
    """Write ``report.html`` and ``report.md`` into ``output`` and return the page's path.

    Appends the Markdown to ``$GITHUB_STEP_SUMMARY`` where that is set.

    Args:
        results: ``.jsonl`` files of ``compress benchmark``; hosts may differ, but are never compared.
        curves: ``pruning_curve.csv`` files of ``compress prune``, or the model directories that hold one.
        title: heading; default the study's name, else the data's.

    Raises:
        CompressError: a file is missing or not what it should be, or the output exists.
    """
    target = Path(output)
    if target.is_file():
        raise CompressError(f"{target} is a file; -o names a directory for {HTML_NAME} and {MARKDOWN_NAME}")
    if not force and any((target / name).exists() for name in (HTML_NAME, MARKDOWN_NAME)):
        raise CompressError(f"{target} already holds a report; choose another -o or replace it with --force")
    lines = read_results(results)
    page = view(lines, [read_curve(Path(path)) for path in curves], title)
    html, markdown = _render("report.html.j2", page), _render("report.md.j2", page)
    try:
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(target / HTML_NAME, html)
        write_atomically(target / MARKDOWN_NAME, markdown)
        if os.environ.get(SUMMARY_VARIABLE):
            with Path(os.environ[SUMMARY_VARIABLE]).open("a", encoding="utf-8") as summary:
                summary.write(markdown + "\n")
    except OSError as error:
        where = error.filename or target
        raise CompressError(f"{where} cannot be written ({error.strerror}); choose another -o") from None
    return target / HTML_NAME


def view(
    lines: Sequence[Measurement], curves: Sequence[tuple[str, str, list[dict[str, str]]]], title: str
) -> dict[str, Any]:
    """Return everything that the templates show."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows_of(lines):
        line = row.head
        groups.setdefault((line["data_sha256"], line["host_id"], line["device"], line["threads"]), []).append(row)
    sections = [_section(rows, only=len(groups) == 1) for rows in groups.values()]
    hosts = {line["host_id"] for line in lines}
    studies = {str(line["study"]) for line in lines if line.get("study")}
    return {
        "title": title or ", ".join(sorted(studies)) or f"Compression on {lines[0]['data']}",
        "sections": sections,
        "hosts_differ": len(hosts) > 1,
        "hosts": len(hosts),
        "curves": [draw_curve(*curve) for curve in curves],
        "origins": _origins(lines),
        "models": _models(lines),
    }


def _section(rows: list[Row], *, only: bool) -> Section:
    rows = sorted(rows, key=lambda r: (r.head["kind"] != "teacher", not is_baseline(r.head), -r.head["speedup"]))
    first = rows[0].head
    host, threads = first.get("host", {}), first["threads"]
    place = host.get("gpu", ["GPU"])[0] if first["device"] == "cuda" and host.get("gpu") else host.get("cpu", "unknown")
    speeds = [row.head["speedup"] for row in rows]
    runtimes = Counter(row.head["model"] for row in rows)
    marks = [_point(row, alone=runtimes[row.head["model"]] == 1) for row in rows]
    y_label = metric_title(first["metric_name"])
    size = first["batch_size"]
    title = f"{first['metric_name']} against speed-up at batch {size}"
    wide, narrow = (pareto_chart(marks, title=title, y_label=y_label, canvas=c) for c in (plot.WIDE, plot.NARROW))
    best = best_row(rows)
    return Section(
        title=f"{first['data']} ({first['data_rows']:,} rows) on {place}, {threads} thread{'s' * (threads > 1)}",
        sentences=verdict(rows),
        tiles=_tiles(best, rows) if best else [],
        pictures=(wide, narrow),
        logarithmic=max(speeds) / min(speeds) > 6,
        headings=_headings(rows),
        table=[(row.head["kind"], _cells(row)) for row in rows],
        notes=_notes(rows),
    )


def _point(row: Row, *, alone: bool) -> Point:
    line = row.head
    name = "teacher" if line["kind"] == "teacher" else line["model"]
    scale = 100.0 if in_percent(line["metric_name"]) else 1.0
    caption = (
        f"{row.title}: {times(line['speedup'])} ({times(line['speedup_low'])} to {times(line['speedup_high'])}), "
        f"{line['metric_name']} {shown(line)}, {points(line['difference_points'])} points, "
        f"{count(line['parameters'])} parameters, {megabytes(line['size_bytes'])}"
        + {"control": ", control without distillation", "teacher": ", teacher"}.get(line["kind"], "")
    )
    low, high = (float(line.get(key) or line["metric"]) for key in ("metric_low", "metric_high"))
    return Point(
        name=name if alone or is_baseline(line) else f"{name} ({line['runtime']})",
        kind=line["kind"], speedup=line["speedup"], speedup_low=line["speedup_low"], speedup_high=line["speedup_high"],
        metric=scale * line["metric"], metric_low=scale * low, metric_high=scale * high, caption=caption,
    )  # fmt: skip


def _tiles(best: Row, rows: Sequence[Row]) -> list[tuple[str, str]]:
    line = best.head
    found = [(times(line["speedup"]), f"speed, {times(line['speedup_low'])} to {times(line['speedup_high'])}")]
    if line["metric_kept_percent"] is not None:
        found.append((f"{line['metric_kept_percent']:.1f}%", f"of the teacher’s {line['metric_name']} kept"))
    if (line["size_ratio"] or 0) > 1.05:
        found.append((times(line["size_ratio"]), f"smaller on disk, {megabytes(line['size_bytes'])}"))
    control = control_of(best, rows)
    if control is not None:
        gain = points(100 * (line["metric"] - control.head["metric"]))
        found.append((gain, "points above the same student undistilled"))
    return found


def _headings(rows: Sequence[Row]) -> list[str]:
    head, bulk = rows[0].head, rows[0].bulk
    return [
        "Model", head["metric_name"].capitalize(), "Kept", "Points lost or won", "Speed-up",
        "In the same runtime", f"Latency, batch {head['batch_size']}", f"Rows/s, batch {bulk['batch_size']}",
        "Parameters", "Disk", "Memory", "Noise",
    ]  # fmt: skip


def _cells(row: Row) -> list[Cell]:
    line, bulk = row.head, row.bulk
    kept, same = line["metric_kept_percent"], line.get("speedup_same_runtime")
    note = {"teacher": "teacher, ", "control": "control, "}.get(line["kind"], "")
    base = is_baseline(line)
    metric_range = ""
    if line.get("metric_low") is not None:
        metric_range = _range(shown(line, "metric_low", digits=1), shown(line, "metric_high", digits=1))
    return [
        Cell(line["model"], line["model"], f"{note}{line['runtime']}"),
        Cell(shown(line), line["metric"], metric_range),
        Cell(f"{kept:.1f}%" if kept is not None else "–", kept or 0),
        Cell("–" if base else points(line["difference_points"]), line["difference_points"],
             "" if base else _range(points(line["difference_low"]), points(line["difference_high"]))),
        Cell(times(line["speedup"]), line["speedup"],
             "" if base else _range(times(line["speedup_low"]), times(line["speedup_high"]))),
        Cell(times(same) if same else "–", same or 0),
        Cell(milliseconds(line["latency_p50_ms"]), line["latency_p50_ms"],
             f"p95 {milliseconds(line['latency_p95_ms'])}"),
        Cell(f"{bulk['throughput_rows_per_second']:,.0f}", bulk["throughput_rows_per_second"],
             times(bulk["speedup"])),
        Cell(count(line["parameters"]) if line["parameters"] else "–", line["parameters"],
             f"÷{line['parameters_ratio']:.1f}" if line.get("parameters_ratio") else ""),
        Cell(megabytes(line["size_bytes"]), line["size_bytes"],
             f"÷{line['size_ratio']:.1f}" if line.get("size_ratio") else ""),
        Cell(megabytes(line["model_memory_bytes"]), line["model_memory_bytes"]),
        Cell(f"{line['noise']:.1%}", line["noise"]),
    ]  # fmt: skip


def _range(low: str, high: str) -> str:
    return f"{low} to {high}"


def _notes(rows: Sequence[Row]) -> list[str]:
    line = rows[0].head
    found = [
        f"Speed-ups are at batch {line['batch_size']}, against the teacher in torch fp32 on the same rows in the same "
        f"rounds ({line.get('rounds', '?')} interleaved rounds, median of per-round ratios, 95% bootstrap interval); "
        "tokenisation is not in them.",
        f"Texts have {line.get('tokens_median', 0):.0f} tokens in the median, {line.get('tokens_p95', 0):.0f} at the "
        "95th percentile; batches are padded to their own longest row.",
        "Memory is what a process holds at its peak above what its libraries held before the model was loaded.",
    ]
    if any(row.head["kind"] == "control" for row in rows):
        found.append("A control is the same student, planned for the same steps and stopped early by the same rule, "
            "on gold labels only.")
    if len({row.head["created"] for row in rows}) > 1:
        found.append("The rows come from more than one run on this host; each speed-up is within its own run.")
    if not any(is_baseline(row.head) for row in rows):
        found.append("The teacher's own line is not among these results.")
    return found


def _origins(lines: Sequence[Measurement]) -> list[Origin]:
    found: dict[tuple[Any, ...], Origin] = {}
    for line in lines:
        key = (line["created"], line["host_id"], line.get("command"), line["data_sha256"])
        host, versions = line.get("host", {}), line.get("versions", {})
        flags = ", ".join(host.get("cpu_flags", [])) or "none of note"
        facts = [
            ("When", line["created"]),
            ("Data", f"{line['data']}, {line['data_rows']:,} rows, sha256 {line['data_sha256'][:12]}"),
            ("Host", f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores, instruction sets: {flags}"),
            ("GPU", ", ".join(host.get("gpu") or []) or "none"),
            ("Versions", ", ".join(f"{name} {versions[name]}" for name in _LIBRARIES_SHOWN if name in versions)),
            ("Rounds and seed", f"{line.get('rounds', '?')} rounds, seed {line.get('seed', '?')}"),
        ]
        found.setdefault(key, Origin(facts, line.get("command") or ""))
    return list(found.values())


def _models(lines: Sequence[Measurement]) -> list[tuple[str, str, str, str]]:
    found = {}
    for line in lines:
        heads = line.get("heads_per_layer")
        found[line["model"], line.get("model_sha256", "")] = (
            line["model"], line["recipe"] or "–", "/".join(map(str, heads)) if heads else "–",
            line.get("model_sha256", "")[:12],
        )  # fmt: skip
    return list(found.values())


def _render(template: str, page: dict[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compress.reporting"), autoescape=template.endswith(".html.j2"), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["plain"] = _plain
    return environment.get_template(template).render(page)


def _plain(text: object) -> str:
    """Make text safe inside a Markdown table: one line, no column marks, no HTML, no emphasis or links."""
    flat = " ".join(str(text).split()).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|*_`[]":
        flat = flat.replace(mark, "\\" + mark)
    return flat
