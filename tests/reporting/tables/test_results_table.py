"""The results table: each figure at the batch size of its heading."""

from __future__ import annotations

from compress.benchmarking.results.files import results_of
from compress.benchmarking.results.formatting import NONE
from compress.reporting.tables.results_table import results
from tests.support.results import line


def test_a_row_without_the_largest_batch_has_no_throughput() -> None:
    both = [
        line("teacher", kind="teacher", batch_size=size, throughput_rows_per_second=100.0 * size) for size in (1, 8)
    ]
    table = results(
        results_of([*both, line("bert-large", kind="reference-model", throughput_rows_per_second=7.0)]), 1.0
    )
    at = next(index for index, column in enumerate(table.columns) if column.key == "rows_per_second")
    assert table.columns[at].group == "Throughput observed, batch 8"
    assert [row.cells[at].text for row in table.rows] == ["800", NONE]
