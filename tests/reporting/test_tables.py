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
    large = {column.key for column in table.columns if "batch 8" in column.group}
    assert large == {"speedup_large", "rows_per_second", "rows_with_tokenizer", "tokens", "energy"}
    reference, teacher = ([row.cells[key].text for key in (*large, "gpu_bytes")] for row in table.rows)
    assert set(reference) == {NONE} and NONE not in teacher
    assert table.rows[1].cells["rows_per_second"].text == "800"
