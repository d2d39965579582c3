"""The page and its Markdown twin: what they say, that they stand alone, and that nothing in them is code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.lockfile import write_lock
from compress.benchmarking.results.files import Results
from compress.benchmarking.results.formatting import (
    megabytes,
    milliseconds,
    money,
    plural,
    points,
    probability,
    shown_rate,
    speed_span,
    times,
)
from compress.benchmarking.results.schema import Measurement
from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.inference.speedup_intervals import Interval
from compress.models.output_dir import alone
from compress.recipes import BenchmarkSettings
from compress.reporting.pages import HTML_NAME, JSON_NAME, MARKDOWN_NAME
from compress.reporting.terminal import results_table
from compress.requests.measuring import report
from tests.support.report_study import study
from tests.support.results import line, write_lines
from tests.support.tiny import examples, torch_directory

CURVE = """heads_removed,heads_kept,share_removed,metric,value,split,rows,recovered
0,72,0.0,accuracy,0.89,validation,800,False
43,29,0.5972,accuracy,0.80,validation,800,False
43,29,0.5972,accuracy,0.88,validation,800,True
"""


def usual() -> list[Measurement]:
    student = {"recipe": "bilstm", "runtime": "onnxruntime", "size_ratio": 20.7}
    return [
        line("teacher", kind="teacher"),
        line("teacher", kind="teacher", runtime="onnxruntime", speedup=1.8, speedup_low=1.7, speedup_high=1.9),
        line("bilstm", **student, speedup=46.2, speedup_low=44, speedup_high=48),
        line("bilstm", **student, speedup=46.2, batch_size=32, throughput_rows_per_second=5078.0),
        line("bilstm-control", kind="control", control_of="bilstm", recipe="bilstm", metric=0.85, speedup=46.0),
        line(
            "fast-but-wrong",
            runtime="onnxruntime",
            speedup=90.0,
            metric=0.7,
            metric_kept_percent=77.8,
            difference_points=-20.0,
            difference_low=-22.0,
            difference_high=-18.0,
        ),
    ]


METRICS = """{"step": 5, "loss": 0.9}
{"step": 5, "validation": 0.5}
{"step": 10, "loss": 0.7}
{"step": 10, "validation": 0.75}
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def make(lines: list[Measurement], **options: Any) -> tuple[str, str]:
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


def test_the_verdict_comes_first(made: Any) -> None:
    html, markdown = made(usual())
    sentence = (
        "bilstm in onnxruntime keeps 99.4% of the teacher’s accuracy at ×46.2 its speed from text to label (×44.0 to "
        "×48.0): within 1 point of the teacher."
    )
    assert sentence in html and sentence in markdown
    assert html.index(sentence) < html.index("<table") and html.index(sentence) < html.index("<svg")
    assert "distillation is worth +4.50 points" in html and "−0.50 points" in html


def test_the_budget_is_the_callers(made: Any) -> None:
    html, _ = made(usual(), max_accuracy_drop=0.2)
    assert "whether that is within 0.2 points is undecided" in html and "Within 0.2?" in html


def test_the_page_stands_alone_and_is_well_formed(made: Any, tmp_path: Path) -> None:
    curve = tmp_path / "pruning_curve.csv"
    curve.write_text(CURVE)
    html, _ = made(usual(), curves=[curve])
    page = Page(html)
    assert all(link.startswith("#") for link in page.links)
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert {"img", "link", "iframe"}.isdisjoint(page.tags)
    for svg in re.findall(r"<svg.*?</svg>", html, re.S):
        ElementTree.fromstring(svg)
    assert "compress benchmark" in page.text and "torch 2.13.0" in page.text and "Test CPU" in page.text
    assert "after recovery" in page.text


def test_trainings_are_shown_beside_their_controls(made: Any, tmp_path: Path) -> None:
    for name in ("bilstm", "bilstm-control", "<img src=y>"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(METRICS)
    (tmp_path / "bilstm" / "pruning_curve.csv").write_text(CURVE)
    given = [tmp_path / "bilstm", tmp_path / "bilstm-control" / "metrics.jsonl", tmp_path / "<img src=y>"]
    html, markdown = made(usual(), curves=given)
    page = Page(html)
    section = html[html.index('<section id="training"') : html.index('<section id="pruning"')]
    assert section.count('<div class="pair">') == 2 and "<img" not in html
    assert "Validation of bilstm" in section and "Loss of &lt;img src=y&gt;" in section
    assert "#training" in page.links and "after recovery" in page.text
    assert "| bilstm-control | 1 | 10 | 10 | 0.7500 (validation) | 0.7 |" in markdown
    data = json.loads((tmp_path / "out" / JSON_NAME).read_text("utf-8"))
    assert (
        data["trainings"].keys() == {"title", "headings", "rows", "notes"}
        and data["trainings"]["rows"][0][3]["value"] == 10
    )
    many = [tmp_path / f"model-{number}" for number in range(7)]
    for folder in many:
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(METRICS)
    html, _ = made(usual(), curves=many)
    assert "<summary>3 further models</summary>" in html and html.count('<div class="pair">') == 7
    assert 'id="training"' not in made(usual())[0]


def test_a_second_command_in_markdown_ends_the_list(made: Any) -> None:
    later = line("s", created="2026-11-21T12:00:00+00:00", command="compress benchmark <b>@someone</b>")
    _, markdown = made([*usual(), later])
    assert "\n`compress benchmark <b>@someone</b>`\n" in markdown


def test_hosts_are_never_compared(made: Any) -> None:
    other = [replace(x, host_id="other", host={"cpu": "Other CPU"}) for x in usual()]
    html, markdown = made(usual() + other)
    assert "2 different machines" in html and "2 different machines" in markdown
    assert html.count('<section id="section-') == 2 and "Other CPU" in html


def test_the_step_summary_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    report([write_lines(tmp_path / "r.jsonl", usual())], tmp_path / "out")
    assert summary.read_text().startswith("before\n## made-up") and "×46.2" in summary.read_text()


def test_a_step_summary_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "summary.md"))
    with pytest.raises(CompressError, match=r"\$GITHUB_STEP_SUMMARY .*summary.md cannot be written"):
        report([write_lines(tmp_path / "r.jsonl", usual())], tmp_path / "out")


def test_mistakes_are_one_sentence_and_write_nothing(tmp_path: Path) -> None:
    results = write_lines(tmp_path / "r.jsonl", usual())
    bad = tmp_path / "bad.csv"
    for content, lacks in (
        ("a,b\n1,2\n", "share_removed, value"),
        ("", "share_removed, value"),
        ("share_removed\n1\n", "value"),
    ):
        bad.write_text(content)
        said = (
            f"cannot be read as a pruning curve: it has no column {lacks}; give the pruning_curve.csv .*metrics.jsonl"
        )
        with pytest.raises(CompressError, match=said):
            report([results], tmp_path / "out", curves=[bad])
    (tmp_path / "model").mkdir()
    with pytest.raises(CompressError, match=r"there is no .*pruning_curve.csv: 'compress prune' writes it where"):
        report([results], tmp_path / "out", curves=[tmp_path / "model"])
    for number in ("nan", "1e308", "-1e308", "1e-320"):
        bad.write_text(CURVE.replace("0.80", number))
        with pytest.raises(CompressError, match=f"{number}.* are not all 0 or from 1e-100 to 1e100"):
            report([results], tmp_path / "out", curves=[bad])
    (tmp_path / "model" / "metrics.jsonl").write_text("{}")
    for given in (tmp_path / "model", tmp_path / "model" / "metrics.jsonl"):
        with pytest.raises(CompressError, match="metrics.jsonl is damaged"):
            report([results], tmp_path / "out", curves=[given])
    assert not (tmp_path / "out").exists()
    with pytest.raises(CompressError, match="is a file"):
        report([results], bad)
    report([results], tmp_path / "out")
    with pytest.raises(CompressError, match="--force"):
        report([results], tmp_path / "out")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["compress.json", "config.json"])
def test_a_report_is_not_written_into_a_model(name: str, force: bool, tmp_path: Path) -> None:
    results, model = write_lines(tmp_path / "results.jsonl", usual()), tmp_path / "model"
    model.mkdir()
    (model / name).write_text("{}")
    with pytest.raises(CompressError, match=f"model holds {name}, so that it is a model or another output"):
        report([results], model, force=force)
    assert [path.name for path in model.iterdir()] == [name]


def test_a_report_may_lie_beside_its_results_and_not_in_what_it_reads(tmp_path: Path) -> None:
    results = write_lines(tmp_path / "results.jsonl", usual())
    report([results], tmp_path)
    (tmp_path / HTML_NAME).write_text("changed by somebody")
    report([results], tmp_path, force=True)
    assert (tmp_path / f"{HTML_NAME}.old").read_text() == "changed by somebody"
    assert {f"{name}{end}" for name in (HTML_NAME, MARKDOWN_NAME, JSON_NAME) for end in ("", ".old")} | {
        "results.jsonl"
    } == {path.name for path in tmp_path.iterdir()}
    (tmp_path / "pruned").mkdir()
    (tmp_path / "pruned" / "pruning_curve.csv").write_text(CURVE)
    with pytest.raises(CompressError, match="lies in .*pruned, which this command reads"):
        report([results], tmp_path / "pruned", curves=[tmp_path / "pruned"], force=True)
    with pytest.raises(CompressError, match="results.jsonl, which this command reads|is a file"):
        report([results], results, force=True)


def test_results_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with pytest.raises(ValueError):
        write_lines(path, [line("a"), line("b", speedup=float("nan"))])
    assert list(tmp_path.iterdir()) == []
    write_lines(path, usual())
    assert list(Results.open(path, path)) == usual() * 2


def test_numbers_as_people_write_them() -> None:
    assert [times(x) for x in (0.0526, 0.974, 4.24, 46.23, 140.3)] == ["×0.053", "×0.97", "×4.24", "×46.2", "×140"]
    assert [points(x) for x in (-0.567, 1.2, 0.001, -0.001)] == ["−0.57", "+1.20", "0.00", "0.00"]
    assert [megabytes(x) for x in (1200, 4.4e6, 91e6, 8e5)] == ["1.2 kB", "4.4 MB", "91 MB", "0.80 MB"]
    assert [milliseconds(x) for x in (0.00083, 0.1849, 9.018, 237.3)] == ["0.00083 ms", "0.185 ms", "9.02 ms", "237 ms"]
    assert [money(x) for x in (0.000123, 0.34, 2.5, 1250.4)] == ["0.00012", "0.34", "2.50", "1,250"]
    assert [shown_rate(x) for x in (4.214, 42.14, 7572.4)] == ["4.21", "42.1", "7,572"]
    assert [probability(x) for x in (0.0000004, 0.0321, 0.414)] == ["< 0.001", "0.032", "0.41"]
    assert [speed_span(Interval(1.1, 1.0, high), times) for high in (1.25, 1.26)] == [
        "×1.00 to ×1.25",
        "×1.00 to ×1.26, wide",
    ]
    assert [plural(x, "row") for x in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]


def test_the_table_on_the_screen(made: Any) -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))
    console.print(results_table(usual()))
    text = console.export_text()
    assert "bilstm-control (control)" in text and "×46.2 [×44.0, ×48.0]" in text
    assert "rows/s, batch 32" in text and re.findall(r"\d+ \[840, 880\]", text) == ["860 [840, 880]"]  # no batch 1


def test_the_terminal_shows_lines_without_a_metric_and_every_interval(made: Any) -> None:
    from rich.console import Console

    console = Console(width=320, record=True, file=open("/dev/null", "w"))
    console.print(results_table(study()))
    text = console.export_text()
    assert "bert-base (reference-model)" in text and "max_length" in text
    rows = [row for row in text.splitlines() if "torchao-int8 (competitor)" in row]
    assert len(rows) == 2 and all(row.count("[×") == 1 and row.count("[") == 4 for row in rows)


def test_the_table_has_every_kind_and_marks_wide_intervals(made: Any) -> None:
    html, markdown = made(study())
    page = Page(html)
    for name in ("majority class", "torchao-int8", "bert-base", "bilstm-control", "padded to 128"):
        assert name in page.text and name in markdown
    (row,) = re.findall(r'<tr class="competitor">\s*<th[^>]*data-value="torchao-int8".*?</tr>', html, re.S)
    assert row.count(", wide<") == 2 and row.count(" ms<") == 5  # at both batch sizes; two p50, p95, p99 and to load
    assert 'aria-label="torchao-int8 (' in html  # its mark in the plot
    assert "Known roughly only: 1 speed-up of 26. Intervals marked wide span more than a factor of 1.25" in markdown


def test_the_twins_say_the_same(made: Any, tmp_path: Path) -> None:
    html, markdown = made(study(), prices=["cpu=0.5"])
    data = json.loads((tmp_path / "out" / JSON_NAME).read_text("utf-8"))
    first = data["sections"][0]
    assert first["verdict"][0] in html and first["verdict"][0] in markdown
    rows = {(row["model"], row["runtime"]): row["cells"] for row in first["table"]["rows"]}
    assert rows["bilstm", "onnxruntime"]["metric"]["value"] == pytest.approx(89.45)
    rough = rows["torchao-int8", "torchao-int8"]["speedup"]
    assert rough["low"] == pytest.approx(0.7 * rough["value"]) and rough["value"] < rough["high"]
    assert rough["text"] == times(rough["value"]) and rough["small"].startswith(f"{times(rough['low'])} to ×")
    assert [step["name"] for step in first["waterfalls"][0]["steps"]][:2] == [
        "dynamic padding",
        "runtime: torch → onnxruntime",
    ]
    assert len(data["sections"]) == 2 and "svg" not in json.dumps(data)


def test_the_machine_file_keeps_its_names(made: Any, tmp_path: Path) -> None:
    curve = tmp_path / "pruning_curve.csv"
    curve.write_text(CURVE)
    made(study(), curves=[curve], prices=["cpu=0.5"])
    data = json.loads((tmp_path / "out" / JSON_NAME).read_text("utf-8"))
    assert data["format"] == 1
    assert " ".join(sorted(data)) == (
        "budget_points costs curves format hosts left_out locks models origins repeats sections title trainings"
    )
    section = data["sections"][0]
    assert " ".join(sorted(section)) == (
        "at_lengths data data_sha256 device flips host_id kinds length logarithmic notes outcome published survey "
        "sweeps table threads title verdict waterfalls"
    )
    row = section["table"]["rows"][0]
    assert row.keys() == {"cells", "kind", "model", "runtime"}
    assert row["cells"].keys() == {column["key"] for column in section["table"]["columns"]}
    assert all(cell.keys() == {"text", "small", "value", "low", "high"} for cell in row["cells"].values())


def test_locks_and_what_was_left_out_are_shown(made: Any, tmp_path: Path) -> None:
    (tmp_path / "results.lock.json").write_text('{"format_version": 1, "odd": "<b>"}')
    html, markdown = made(study())
    assert "compress replay results.lock.json" in html and "compress replay results.lock.json" in markdown
    assert "{&#34;format_version&#34;: 1, &#34;odd&#34;: &#34;&lt;b&gt;&#34;}" in html
    assert "no wheel for this Python; &lt;pip&gt; says so" in html and "ctranslate2-int8" in markdown


@pytest.mark.parametrize(("train", "option"), [(None, ""), (examples(2), "--train FILE ")])
def test_a_lock_with_training_rows_is_run_again_with_them(
    train: list[Example] | None, option: str, made: Any, tmp_path: Path
) -> None:
    teacher = torch_directory("bert")
    lines = [line("bert", kind="teacher", model_sha256=teacher.sha256), line("small", kind="baseline")]
    write_lock(tmp_path / "results.jsonl", lines, BenchmarkSettings(), Compute("cpu"), {"bert": teacher.path}, train)
    for page in made(lines):
        assert f"compress replay results.lock.json --data FILE {option}--root DIR -o FILE" in page


def test_several_seeds_are_taken_together(made: Any) -> None:
    lines = [line("teacher", kind="teacher")]
    lines += [line(f"s{seed}", recipe="bilstm", training_seed=seed, model_sha256=f"{seed}" * 64) for seed in (0, 1, 2)]
    int8 = [replace(one, model=f"{one.model}-int8", stage="quantize") for one in lines[1:]]
    html, markdown = made([*lines, *int8])
    assert "Over seeds and data sets" in html and "Over seeds and data sets" in markdown
    assert "| bilstm (torch) |" in markdown and "| bilstm (quantize, torch) |" in markdown
    assert "Over seeds and data sets" not in made(lines[:2])[0]


def test_a_row_says_that_float32_was_kept_instead_of_int8(made: Any) -> None:
    pages = [made([*usual(), line("s-int8", stage="quantize", quantizer=name)]) for name in ("float32", "onnx-dynamic")]
    assert [["float32 kept, torch" in text for text in page] for page in pages] == [[True, True], [False, False]]
    control = line("s-control-int8", kind="control", stage="quantize", quantizer="float32")
    assert "control, float32 kept, torch" in made([*usual(), control])[0]


def test_two_reports_never_mix_their_pages(tmp_path: Path) -> None:
    results = write_lines(tmp_path / "r.jsonl", usual())
    with alone(tmp_path / "out" / "report.html"), pytest.raises(CompressError, match="another command is writing"):
        report([results], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


def test_a_kind_from_the_future_is_refused(tmp_path: Path) -> None:
    results = write_lines(tmp_path / "r.jsonl", [usual()[0], line("odd", kind="oracle")])
    with pytest.raises(CompressError, match="odd is a 'oracle' on 'cpu', which this compress does not know"):
        report([results], tmp_path / "out")


def test_reading_results_needs_no_torch() -> None:
    code = (
        "import sys, compress.reporting.report, compress.gating.check, compress.benchmarking.benchmark\n"
        "import compress.evaluation.metrics, compress.reporting.svg\n"
        "print({'torch', 'transformers', 'scipy', 'sklearn', 'onnxruntime'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_columns_without_texts_are_refused(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from compress.cli import cli

    results = write_lines(tmp_path / "r.jsonl", usual())
    found = CliRunner().invoke(cli, ["report", str(results), "-o", str(tmp_path / "out"), "--text-column", "sentence"])
    assert isinstance(found.exception, CompressError) and "--texts" in str(found.exception)
    assert not (tmp_path / "out").exists()
