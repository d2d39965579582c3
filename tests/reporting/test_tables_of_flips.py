"""Which rows and classes changed; texts only where the caller hands them over, and then on the page only."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress.data import Example, content_sha256
from compress.errors import CompressError
from compress.reporting.tables import flips_of
from compress.requests.measuring import report
from tests.support.results import line, write_lines

TEXTS = ["a dull film", "a <b>bright</b> film", "no idea"]
SHA256 = content_sha256([Example(text, None, str(index % 2)) for index, text in enumerate(TEXTS)])
CLASSES = [
    {
        "label": "negative",
        "rows": 2,
        "recall": 0.5,
        "teacher_recall": 0.4,
        "difference_points": 10.0,
        "low": 1.0,
        "high": 19.0,
    },
    {
        "label": "positive",
        "rows": 1,
        "recall": 0.0,
        "teacher_recall": 1.0,
        "difference_points": -100.0,
        "low": None,
        "high": None,
    },
    {
        "label": "absent",
        "rows": 0,
        "recall": None,
        "teacher_recall": None,
        "difference_points": None,
        "low": None,
        "high": None,
    },
]
SLICE = {"slice": "language=<en>", "rows": 2, "metric": 0.5, "metric_low": 0.1, "metric_high": 0.9}
SLICE |= {"teacher_metric": 0.6, "difference_points": -10.0, "low": -30.0, "high": 10.0}
STUDENT = line(
    "student",
    data_sha256=SHA256,
    flips_lost_rows=12,
    flips_won_rows=1,
    classes=CLASSES,
    slices=[{**SLICE, "slice": "language=de", "difference_points": -3.0}, SLICE],
    flips_lost=[{"row": 1, "gold": 1, "predicted": 0, "change": -97.5}] * 12,
    flips_won=[{"row": 0, "gold": 0, "predicted": 1, "change": 51.0}],
)
LINES = [line("teacher", kind="teacher", data_sha256=SHA256), STUDENT, replace(STUDENT, runtime="onnxruntime")]


def made(folder: Path, **options: Any) -> tuple[str, str, str]:
    report([write_lines(folder / "r.jsonl", LINES)], folder / "out", force=True, **options)
    return tuple((folder / "out" / f"report.{kind}").read_text("utf-8") for kind in ("html", "md", "json"))  # type: ignore[return-value]


def data(folder: Path, texts: list[str] = TEXTS) -> Path:
    rows = "".join(f"{text}\t{index % 2}\n" for index, text in enumerate(texts))
    path = folder / "dev.tsv"
    path.write_text("text\tlabel\n" + rows)
    return path


def test_a_model_once_and_the_worst_rows_first() -> None:
    (found,) = flips_of(LINES, {})
    assert (found.lost_rows, found.won_rows, len(found.lost.rows)) == (12, 1, 10)
    row, *names = found.lost.rows[0][:3]
    assert (row.value, *(name.text for name in names)) == (1, "positive", "negative")
    assert [row[0].text for row in found.classes.rows] == ["positive", "negative", "absent"]
    assert [(row[-1].text, row[-1].small) for row in found.classes.rows] == [
        ("−100.00", ""),
        ("+10.00", "+1.00 to +19.00"),
        ("–", ""),
    ]
    assert [[cell.text for cell in row] for row in found.slices.rows] == [
        ["language=<en>", "2", "50.00%", "60.00%", "−10.00"],
        ["language=de", "2", "50.00%", "60.00%", "−3.00"],
    ]


def test_a_faster_competitor_does_not_stand_for_the_model() -> None:
    rival = replace(STUDENT, kind="competitor", runtime="model2vec", speedup_with_tokenizer=99.0, flips_lost_rows=700)
    found = flips_of([LINES[0], rival, *LINES[1:]], {})
    assert [(one.runtime, one.lost_rows) for one in found] == [("model2vec", 700), (STUDENT.runtime, 12)]


def test_a_word_that_its_sentence_does_not_have_is_refused() -> None:
    flips = [{"row": 0, "word": 3, "gold": 0, "predicted": 1, "change": -1.0}]
    for texts, refused in (({}, False), ({SHA256: ["a dull film"]}, True)):
        with pytest.raises(CompressError, match="word 4 of row 1, which has 3") if refused else nullcontext():
            flips_of([LINES[0], replace(STUDENT, flips_lost=flips)], texts)


def test_scores_of_a_regression_are_shown_as_they_are() -> None:
    flip = {"row": 0, "gold": 3.5, "predicted": 2.25, "change": -1.0}
    (found,) = flips_of([line("s", labels=["score"], flips_lost=[flip], flips_lost_rows=1)], {})
    assert [cell.text for cell in found.lost.rows[0][1:3]] == ["3.5", "2.25"]


def test_no_text_without_the_texts(tmp_path: Path) -> None:
    html, markdown, machine = made(tmp_path)
    assert "bright" not in html + markdown + machine and "12 rows lost, 1 won" in html
    assert "positive: −100.00 points" in markdown and "language=&lt;en&gt;" in html


def test_texts_are_escaped_and_on_the_page_only(tmp_path: Path) -> None:
    html, markdown, machine = made(tmp_path, texts=[data(tmp_path)])
    assert "a &lt;b&gt;bright&lt;/b&gt; film" in html and "a dull film" in html and "no idea" not in html
    assert "bright" not in markdown + machine


def test_the_page_counts_rows_from_one_and_programs_from_zero(tmp_path: Path) -> None:
    html, _, machine = made(tmp_path, texts=[data(tmp_path)])
    assert re.search(r'<th scope="row" data-value="1">2</th>\s*<td class="text">positive</td>', html)
    assert "counted from 1, without a header" in html
    (flips,) = json.loads(machine)["sections"][0]["flips"]
    assert [flips[which]["rows"][0][0]["value"] for which in ("lost", "won")] == [1, 0]


def test_other_texts_are_refused(tmp_path: Path) -> None:
    other = data(tmp_path, [*TEXTS[:2], "another row"])
    with pytest.raises(CompressError, match=r"holds other rows \(sha256 .*\) than were measured: dev.tsv"):
        made(tmp_path, texts=[other])
    assert not (tmp_path / "out").exists()


def test_the_command_takes_the_columns_of_the_texts(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from compress.cli import cli

    path = tmp_path / "odd.csv"
    path.write_text("sentence,sense\n" + "".join(f"{text},{index % 2}\n" for index, text in enumerate(TEXTS)))
    results = write_lines(tmp_path / "r.jsonl", LINES)
    arguments = ["report", str(results), "-o", str(tmp_path / "out"), "--texts", str(path)]
    columns = ["--text-column", "sentence", "--label-column", "sense", "--max-accuracy-drop", "2", "--price", "cpu=1"]
    found = CliRunner().invoke(cli, [*arguments, *columns], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    html = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "a dull film" in html and "Within 2?" in html
