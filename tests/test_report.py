"""The page and its Markdown twin: what they say, that they stand alone, and that nothing in them is code."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from lines import line, write_lines

from compress.errors import CompressError
from compress.measuring.results import read_results, rows_of
from compress.report import HTML_NAME, MARKDOWN_NAME, report
from compress.reporting import plot
from compress.reporting.pareto import Point, front, pareto_chart
from compress.reporting.units import megabytes, milliseconds, points, times
from compress.reporting.wording import results_table, verdict

CURVE = """heads_removed,heads_kept,share_removed,metric,value,split,rows,recovered
0,72,0.0,accuracy,0.89,validation,800,False
43,29,0.5972,accuracy,0.80,validation,800,False
43,29,0.5972,accuracy,0.88,validation,800,True
"""


def usual() -> list[dict[str, Any]]:
    student = {"recipe": "bilstm", "runtime": "onnxruntime", "size_ratio": 20.7}
    return [
        line("teacher", kind="teacher"),
        line("teacher", kind="teacher", runtime="onnxruntime", speedup=1.8, speedup_low=1.7, speedup_high=1.9),
        line("bilstm", **student, speedup=46.2, speedup_low=44, speedup_high=48),
        line("bilstm", **student, speedup=46.2, batch_size=32, throughput_rows_per_second=5078.0),
        line("bilstm-control", kind="control", control_of="bilstm", recipe="bilstm", metric=0.85, speedup=46.0),
        line("fast-but-wrong", runtime="onnxruntime", speedup=90.0, metric=0.7, metric_kept_percent=77.8),
    ]  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def make(lines: list[dict[str, Any]], **options: Any) -> tuple[str, str]:
        path = write_lines(tmp_path / "results.jsonl", lines)
        report([path], tmp_path / "out", force=True, **options)
        return tuple((tmp_path / "out" / name).read_text("utf-8") for name in (HTML_NAME, MARKDOWN_NAME))  # type: ignore[return-value]

    return make


class Page(HTMLParser):
    """Checks that tags match, and gathers what a browser would fetch or show."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "action"}]
        if tag not in {"meta", "input", "link", "br"} | {"rect", "line", "circle", "polyline", "path"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            assert tag in {"rect", "line", "circle", "polyline", "path"}, f"</{tag}> closes {self.open[-1:]}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.text += data


def test_the_verdict_comes_first_and_is_the_fastest_that_keeps_enough(made: Any) -> None:
    html, markdown = made(usual())
    sentence = "bilstm in onnxruntime runs at ×46.2 the speed of the teacher, is ×20.7 smaller on disk and keeps 99.4%"
    assert sentence in html and sentence in markdown
    assert html.index(sentence) < html.index("<table")
    assert "distillation is worth +4.50 points" in html and "−0.50 points" in html


def test_no_model_within_one_percent_is_said(made: Any) -> None:
    html, _ = made([usual()[0], usual()[5]])
    assert "No model keeps 99% of the teacher’s accuracy; the closest, fast-but-wrong in onnxruntime" in html


def test_only_the_teacher(made: Any) -> None:
    html, _ = made(usual()[:1])
    assert "there is no compressed model to judge" in html


def test_the_page_stands_alone_and_is_well_formed(made: Any, tmp_path: Path) -> None:
    curve = tmp_path / "pruning_curve.csv"
    curve.write_text(CURVE)
    html, _ = made(usual(), curves=[curve])
    page = Page(html)
    assert page.links == [] and "http" not in html.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert {"img", "link", "iframe"}.isdisjoint(page.tags)
    for svg in re.findall(r"<svg.*?</svg>", html, re.S):
        ElementTree.fromstring(svg)
    assert "compress benchmark" in page.text and "torch 2.13.0" in page.text and "Test CPU" in page.text
    assert "after recovery" in page.text


def test_every_name_is_escaped(made: Any, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'|`x`"
    folder = tmp_path / "<img src=x>"
    folder.mkdir()
    (folder / "pruning_curve.csv").write_text(CURVE)
    lines = [usual()[0], line(evil, runtime=evil, recipe=evil, command=evil, study=evil, data=evil)]
    html, markdown = made(lines, curves=[folder])
    assert html.count("<script>") == 1 and "<img" not in html
    Page(html)
    table = [row for row in markdown.splitlines() if row.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table[:3]}) == 1
    assert not re.search(r"<script", "\n".join(row for row in markdown.splitlines() if not row.startswith("    ")))


def test_hosts_are_never_compared(made: Any) -> None:
    other = [{**x, "host_id": "other", "host": {"cpu": "Other CPU"}} for x in usual()]
    html, markdown = made(usual() + other)
    assert "2 different machines" in html and "2 different machines" in markdown
    assert html.count('<section aria-label="') == 2 and "Other CPU" in html


def test_the_newest_run_of_a_configuration_counts() -> None:
    old = line("student", speedup=3.0, created="2026-01-01T00:00:00+00:00")
    new = line("student", speedup=4.0, created="2026-02-01T00:00:00+00:00")
    stale = line("student", batch_size=32, created="2026-01-01T00:00:00+00:00")
    for order in ([old, stale, new], [new, stale, old]):
        (row,) = rows_of(order)
        assert [x["speedup"] for x in row.lines] == [4.0]


def test_a_noisy_machine_is_named() -> None:
    rows = rows_of([*usual()[:2], {**usual()[2], "noise": 0.31}])
    assert any("varied by up to 31% (bilstm in onnxruntime)" in sentence for sentence in verdict(rows))


def test_the_step_summary_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    report([write_lines(tmp_path / "r.jsonl", usual())], tmp_path / "out")
    assert summary.read_text().startswith("before\n## made-up") and "×46.2" in summary.read_text()


def test_mistakes_are_one_sentence_and_write_nothing(tmp_path: Path) -> None:
    results = write_lines(tmp_path / "r.jsonl", usual())
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b\n1,2\n")
    with pytest.raises(CompressError, match="is not a pruning curve"):
        report([results], tmp_path / "out", curves=[bad])
    assert not (tmp_path / "out").exists()
    with pytest.raises(CompressError, match="is a file"):
        report([results], bad)
    report([results], tmp_path / "out")
    with pytest.raises(CompressError, match="--force"):
        report([results], tmp_path / "out")


def test_results_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with pytest.raises(ValueError):
        write_lines(path, [line("a"), line("b", speedup=float("nan"))])
    assert list(tmp_path.iterdir()) == []
    write_lines(path, usual())
    assert read_results([path, path]) == usual() * 2


def test_line_chart_is_standalone_svg() -> None:
    series = [plot.Series("a <b>", [(0, 90), (50, 88.5), (60, 80)]), plot.Series("recovered", [(60, 88)])]
    svg = plot.line_chart(series, title="heads & accuracy", x_label="removed (%)", y_label="accuracy (%)")
    root = ElementTree.fromstring(svg)
    namespace = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{namespace}svg" and "heads & accuracy" in root.attrib["aria-label"]
    assert len(root.findall(f".//{namespace}polyline")) == 1
    assert len([c for c in root.iter(f"{namespace}circle") if "dot" in c.attrib["class"]]) == 4
    assert "prefers-color-scheme:dark" in svg
    with pytest.raises(ValueError, match="no points"):
        plot.line_chart([], title="t", x_label="x", y_label="y")


@pytest.mark.parametrize("values", [[5.0], [88.1, 88.2], [0.0, 100.0], [-3.0, 4.0], [1.0, 1e6]])
def test_axes_hold_their_values_and_have_round_ticks(values: list[float]) -> None:
    for log in (False, True):
        if log and min(values) <= 0:
            continue
        axis = plot.Axis.over(values, 0, 100, log=log)
        assert all(0 < axis.place(value) < 100 for value in values)
        assert 1 <= len(axis.ticks()) <= 12 and all(0 <= axis.place(tick) <= 100 for tick in axis.ticks())


def test_the_front_holds_what_nothing_beats() -> None:
    def point(name: str, speedup: float, metric: float, kind: str = "model") -> Point:
        return Point(name, kind, speedup, speedup, speedup, metric, metric, metric, name)

    drawn = [
        point("teacher", 1, 89, "teacher"), point("slow", 2, 88), point("good", 5, 88.5), point("fast", 40, 88),
        point("bad", 30, 80), point("control", 50, 99, "control"),
    ]  # fmt: skip
    assert [p.name for p in front(drawn)] == ["teacher", "good", "fast"]
    svg = pareto_chart(drawn, title="t", y_label="accuracy (%)")
    marks = [g for g in ElementTree.fromstring(svg).iter() if "point" in g.attrib.get("class", "").split()]
    assert len(marks) == 6 and all(mark.attrib["tabindex"] == "0" and mark.attrib["aria-label"] for mark in marks)
    assert [m.attrib["class"].split()[-1] for m in marks].count("hollow") == 1


def test_numbers_as_people_write_them() -> None:
    assert [times(x) for x in (0.974, 4.24, 46.23, 140.3)] == ["×0.97", "×4.24", "×46.2", "×140"]
    assert [points(x) for x in (-0.567, 1.2, 0.001, -0.001)] == ["−0.57", "+1.20", "0.00", "0.00"]
    assert [megabytes(x) for x in (4.4e6, 91e6, 8e5)] == ["4.4 MB", "91 MB", "0.80 MB"]
    assert [milliseconds(x) for x in (0.1849, 9.018, 237.3)] == ["0.185 ms", "9.02 ms", "237 ms"]


def test_the_table_on_the_screen(made: Any) -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))
    console.print(results_table(usual()))
    text = console.export_text()
    assert "bilstm-control (control)" in text and "×46.2 [×44.0, ×48.0]" in text and "5,078" in text


def test_reading_results_needs_no_torch() -> None:
    code = (
        "import sys, compress.report, compress.gate, compress.measure, compress.metrics, compress.reporting.plot\n"
        "print({'torch', 'transformers', 'scipy', 'sklearn', 'onnxruntime'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
