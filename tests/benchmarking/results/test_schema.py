"""A figure with its interval is written and read by the same names; lines that no benchmark writes are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.results.files import Results, grouped, parse_results, results_of
from compress.benchmarking.results.schema import interval_fields
from compress.errors import CompressError
from tests.support.results import line


@pytest.mark.parametrize(
    "name",
    ["speedup", "latency_p50_ms", "throughput_rows_per_second", "metric", "difference_points", "calibration_error"],
)
def test_an_interval_is_read_as_it_was_written(name: str) -> None:
    fields = interval_fields(name, (2.0, 1.5, 2.5))
    assert line("model", **fields).interval(name) == (2.0, 1.5, 2.5)
    assert line("model", **interval_fields(name, None)).interval(name) is None


def test_bounds_are_called_as_files_call_them() -> None:
    assert list(interval_fields("latency_p95_ms", None)) == [
        "latency_p95_ms",
        "latency_p95_low_ms",
        "latency_p95_high_ms",
    ]
    assert list(interval_fields("difference_points", None))[1:] == ["difference_low", "difference_high"]


def test_a_result_has_the_newest_line_of_each_batch_size() -> None:
    old, new = "2026-11-20T12:00:00+00:00", "2026-11-21T12:00:00+00:00"
    lines = [
        line("a", batch_size=32, created=new),
        line("a", batch_size=64, created=old),
        line("a", batch_size=1, created=new),
        line("b", created=old),
        line("a", batch_size=32, created=old),
    ]
    first, second = results_of(lines)
    assert [one.batch_size for one in first.lines] == [1, 32, 64]
    assert first.small_batch is lines[2] and first.large_batch is lines[1]
    assert first.at(32) is lines[0]
    assert second.small_batch.title == "b in torch"


def test_groups_and_their_items_keep_their_order() -> None:
    assert grouped([3, 1, 4, 1, 5], lambda value: value % 2) == {1: [3, 1, 1, 5], 0: [4]}


@pytest.mark.parametrize("schema", [2, 3, 4, 5, 6])
def test_lines_of_earlier_ways_of_measuring_open(schema: int) -> None:
    text = json.dumps({**line("model").to_json(), "schema": schema})
    if schema < 6:
        assert parse_results(text, "r.jsonl")[0].schema == schema
        return
    with pytest.raises(CompressError, match="line 1 has schema 6; this compress reads 5: run the benchmark again"):
        parse_results(text, "r.jsonl")


FLIP = {"row": 1, "gold": 0, "predicted": 1, "change": -1.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speedup": 0.0}, "speedup = 0.0 is too small"),
        ({"speedup": 1e308}, "speedup is not of type number"),
        ({"speedup": True}, "speedup is not of type number"),
        ({"batch_size": 1.0}, "batch_size is not of type integer"),
        ({"batch_size": True}, "batch_size is not of type integer"),
        ({"parents": ""}, "parents is not of type array"),
        ({"latency_p95_ms": -1.0}, "latency_p95_ms = -1.0 is too small"),
        ({"size_bytes": 10**30}, "size_bytes is not of type integer"),
        ({"batch_size": 0}, "batch_size = 0 is too small"),
        ({"speedup_low": 9.0}, "speedup has an interval that ends before it begins"),
        ({"metric_name": "luck"}, "metric_name is none of accuracy"),
        ({"latency_ms": [[1.0], "2"]}, "latency_ms is not of type array"),
        ({"latency_ms": [[1.0]], "latency_cpu_ms": [[1.0]]}, "latency_ms has fewer than two rounds"),
        ({"latency_ms": [[1.0], []], "latency_cpu_ms": [[1.0], []]}, "latency_ms has fewer than two rounds, or a"),
        ({"latency_ms": [[0.0, 1.0]] * 3}, "latency_ms has times that no benchmark measures"),
        ({"latency_ms": [[1e12, 1.0]] * 3}, "latency_ms has times that no benchmark measures"),
        ({"classes": [{"label": "a"}]}, "classes is not of type array"),
        ({"validation_curve": [[100]]}, "validation_curve is not of ascending steps, each with a score"),
        ({"validation_curve": [[9, 0.5], [8, 0.6]]}, "validation_curve is not of ascending steps, each with a score"),
        ({"validation_curve": [[-1, 0.5]]}, "validation_curve is not of ascending steps, each with a score"),
        ({"validation_curve": [[100, "0.5"]]}, "validation_curve is not of type array"),
        ({"flips_lost": [{"row": -1, "gold": 0, "predicted": 1, "change": 0}]}, "flips_lost is not of type array"),
        ({"predictions": [5] * 2000}, "predictions has classes that are not in labels"),
        ({"predictions": [1]}, "predictions has other rows than data_rows says"),
        ({"flips_lost": [{**FLIP, "predicted": 2}]}, "flips have classes as predicted that are not in labels"),
        ({"flips_won": [{**FLIP, "gold": -1}]}, "flips have classes as gold that are not in labels"),
        ({"flips_won": [{**FLIP, "row": 2000}]}, "flips have rows beyond data_rows"),
        ({"flips_won": [{**FLIP, "word": "1"}]}, "flips_won is not of type array"),
        ({"gold": [-1] * 2000}, "gold has classes that are not in labels"),
        ({"metric_rows": 0}, "metric_rows are fewer than the rows that flipped"),
        ({"flips_lost_rows": 1500, "flips_won_rows": 501}, "metric_rows are fewer than the rows that flipped"),
        ({"metric_rows": -1}, "metric_rows = -1 is too small"),
        ({"metric_name": None}, "metric has no name"),
        ({"metric": None}, "metric stands without difference_points"),
        ({"kind": "pruning-step"}, "parents do not name the pruned model"),
        ({"host": {"cpu_flags": [1]}}, "host is not of type object"),
        ({"host": {"gpu": {"0": "x"}}}, "host is not of type object"),
        ({"shape": {"vocabulary_size": "x"}}, "shape is not of type object"),
        ({"predictions": [1] * 10_001, "data_rows": 10_001}, "predictions has more rows than the 10,000 that are kept"),
        ({"latency_ms": [[1.0] * 100_001] * 2, "clock": "wall"}, "latency_ms has more than 200,000 times"),
        ({"versions": {"torch": 2}}, "versions is not of type object"),
    ],
    ids=str,
)
def test_a_line_that_no_benchmark_writes_is_refused(change: dict[str, Any], message: str) -> None:
    text = json.dumps({**line("model").to_json(), **change})
    with pytest.raises(CompressError, match=f"r.jsonl, line 1 is not a result of compress benchmark: {message}"):
        parse_results(text, "r.jsonl")


def test_lines_of_one_set_have_as_many_rows(tmp_path: Path) -> None:
    for name, rows in (("a", 2000), ("b", 1999)):
        (tmp_path / name).write_text(json.dumps(line("model", data_rows=rows).to_json()))
    with pytest.raises(CompressError, match="lines of dev.tsv, of one data_sha256, have different data_rows"):
        Results.open(tmp_path / "a", tmp_path / "b")
