"""Results as one object; lines of the benchmark scripts: their origin, and how a file keeps one of each kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import compress
from compress.benchmarking.results.files import Results
from compress.errors import CompressError
from tests.support.results import line as result
from tests.support.results import write_lines


def test_results_are_opened_from_files_and_from_results(tmp_path: Path) -> None:
    lines = [result("teacher", kind="teacher"), result("small"), result("small", batch_size=8)]
    path = write_lines(tmp_path / "r.jsonl", lines)
    found = compress.Results.open(path)
    assert list(found) == lines and len(found) == 3 and found[1].model == "small" and found.files == (path,)
    assert compress.Results.open(found, str(path)).lines == (*lines, *lines)
    assert [row.large_batch.batch_size for row in found.configurations] == [1, 8]
    assert repr(found) == "<Results: 3 lines of teacher, small>"


def test_results_become_a_frame_with_a_row_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Results((result("teacher", kind="teacher"), result("small")))
    frame = found.to_pandas()
    assert list(frame["model"]) == ["teacher", "small"] and list(frame["speedup_with_tokenizer"]) == [1.0, 5.5]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CompressError, match="needs the Python package pandas, which is not installed; type pip"):
        found.to_pandas()


def test_results_show_a_table_whose_names_are_text() -> None:
    html = Results((result("teacher", kind="teacher"), result("<b>small", batch_size=8)))._repr_html_()
    assert html.count("<tr>") == 3 and "&lt;b&gt;small" in html and "<b>" not in html
    assert "×5.50 (×5.20 to ×5.80)" in html and "accuracy 89.50%" in html and "−0.50 (−0.90 to −0.10)" in html


def test_results_are_reported_whether_they_have_a_file_or_not(tmp_path: Path) -> None:
    found = Results((result("teacher", kind="teacher"), result("small")))
    page = found.report(tmp_path / "page", title="A study")
    assert page == tmp_path / "page" / "report.html" and "A study" in page.read_text(encoding="utf-8")
    path = write_lines(tmp_path / "r.jsonl", found)
    for number, given in enumerate((found, path, [path, found])):
        assert compress.report(given, tmp_path / str(number)).is_file()
    with pytest.raises(CompressError, match="^3 is no file of results; give a .jsonl of benchmark, or what it returns"):
        compress.report(3, tmp_path / "none")
