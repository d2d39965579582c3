"""The results table: each figure at the batch size of its heading."""

from __future__ import annotations

from compress.benchmarking.results.files import results_of
from compress.benchmarking.results.formatting import NONE
from compress.reporting.tables import results
from tests.support.results import line


def test_a_row_without_the_largest_batch_has_no_throughput() -> None:
    figures = {"throughput_tokens_per_second": 9.0, "energy_joules_per_row": 2.0, "peak_gpu_memory_bytes": 4_000_000}
    both = [
        line("teacher", kind="teacher", batch_size=size, throughput_rows_per_second=100.0 * size, **figures)
        for size in (1, 8)
    ]
    reference = line("bert-large", kind="reference-model", throughput_rows_per_second=7.0, **figures)
    table = results(results_of([reference, *both]), 1.0)
    large = {column.key: index for index, column in enumerate(table.columns) if "batch 8" in column.group}
    assert large.keys() == {"speedup_large", "rows_per_second", "rows_with_tokenizer", "tokens", "energy"}
    places = [*large.values(), next(i for i, column in enumerate(table.columns) if column.key == "gpu_bytes")]
    assert {table.rows[0].cells[place].text for place in places} == {NONE}
    assert NONE not in {table.rows[1].cells[place].text for place in places}
    assert table.rows[1].cells[large["rows_per_second"]].text == "800"
