"""A figure with its interval is written and read by the same names."""

from __future__ import annotations

import pytest

from compress.benchmarking.results.files import grouped, results_of
from compress.benchmarking.results.schema import interval_fields
from tests.support.results import line


@pytest.mark.parametrize(
    "name",
    ["speedup", "speedup_same_runtime", "latency_p95_ms", "metric", "difference_points", "calibration_error"],
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


def test_a_result_has_the_lines_of_its_newest_run_by_batch_size() -> None:
    old, new = "2026-11-20T12:00:00+00:00", "2026-11-21T12:00:00+00:00"
    lines = [
        line("a", batch_size=32, created=new),
        line("a", batch_size=64, created=old),
        line("a", batch_size=1, created=new),
        line("b", created=old),
    ]
    first, second = results_of(lines)
    assert [one.batch_size for one in first.lines] == [1, 32]
    assert first.small_batch is lines[2] and first.large_batch is lines[0]
    assert second.title == "b in torch"


def test_groups_and_their_items_keep_their_order() -> None:
    assert grouped([3, 1, 4, 1, 5], lambda value: value % 2) == {1: [3, 1, 1, 5], 0: [4]}
