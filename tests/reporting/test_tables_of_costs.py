"""What predictions cost: from a typed price to a table, and never without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compress.benchmarking.results.files import results_of
from compress.errors import CompressError
from compress.reporting.pages import Cell
from compress.reporting.tables import Costs, costs_of, parse_prices
from tests.support.results import line

RATE = "throughput_with_tokenizer_rows_per_second"
TEACHER = line("teacher", kind="teacher", **{RATE: 100.0})
STUDENT = line("student", runtime="onnxruntime", model_sha256="5" * 64, **{RATE: 5000.0})


def costs(*prices: str, lines: Any = (TEACHER, STUDENT), best: Any = (STUDENT,)) -> Costs:
    found = costs_of(results_of(lines), best, parse_prices(prices), "EUR")
    assert found is not None
    return found


def cells(found: Costs) -> list[dict[str, Cell]]:
    return [dict(zip(found.table.headings, row, strict=True)) for row in found.table.rows]


def test_prices_are_read() -> None:
    assert parse_prices(["cpu=0.34", "cpu:8=1.20", "cuda=2.5"]) == {
        ("cpu", None): 0.34,
        ("cpu", 8): 1.2,
        ("cuda", None): 2.5,
    }


@pytest.mark.parametrize(
    "text",
    ["0.34", "tpu=1", "cpu=", "cpu=free", "cpu=-1", "cpu=0", "cpu=inf", "cpu=1_0", "cpu:=1", "cpu:x=1", "cpu:0=1"],
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(CompressError, match=r"is not a price an hour; type .*--price cpu=0.34"):
        parse_prices([text])


def test_a_price_twice_or_for_what_was_not_measured_is_refused() -> None:
    with pytest.raises(CompressError, match="prices cpu a second time"):
        parse_prices(["cpu=1", "cpu=2"])
    with pytest.raises(CompressError, match="--price cuda is for a machine that was not measured; there is cpu:1"):
        costs("cuda=1")
    with pytest.raises(CompressError, match="--price cpu:8"):
        costs("cpu:8=1")


def test_a_price_over_predictions_an_hour() -> None:
    found = costs("cpu=0.36")
    teacher, student = cells(found)
    assert teacher["Predictions an hour"].value == 360_000 and teacher["Cost of a million"].value == pytest.approx(1.0)
    assert student["Cost of 1,000"].value == pytest.approx(0.36 / 18_000)
    assert student["Model"].small.endswith("batch 1")
    shown = [cell.text for cell in found.table.rows[0]]
    assert shown == ["Test CPU, 1 thread", "teacher", "0.36 EUR", "360,000", "0.0010 EUR", "1.00 EUR"]


def test_without_a_price_there_is_no_cost() -> None:
    found = costs()
    assert [row["Cost of a million"].value for row in cells(found)] == [None, None]
    assert [cell.text for cell in found.table.rows[0][2:]] == ["–", "360,000", "–", "–"]
    assert found.offers[0].price_per_hour is None


def test_thread_counts_and_devices_are_machines_of_their_own() -> None:
    more = [replace(one, threads=8, **{RATE: 4 * getattr(one, RATE)}) for one in (TEACHER, STUDENT)]
    gpu = [replace(one, device="cuda", host_id="g", host={"gpu": ["Card"]}) for one in (TEACHER, STUDENT)]
    found = costs("cpu=0.3", "cpu:8=0.9", lines=[TEACHER, STUDENT, *more, *gpu])
    assert [(offer.title, offer.price_per_hour) for offer in found.offers] == [
        ("Test CPU, 1 thread", 0.3),
        ("Test CPU, 8 threads", 0.9),
        ("Card", None),
    ]
    assert len(found.table.rows) == 6 and {offer.key for offer in found.offers} == set(found.machines)


def test_largest_batch_counts_and_others_stay_away() -> None:
    large = replace(STUDENT, batch_size=32, **{RATE: 9000.0})
    other = line("other", model_sha256="6" * 64)
    padded = replace(TEACHER, padding="max_length")
    found = costs("cpu=1", lines=[TEACHER, padded, STUDENT, large, other])
    models = [row["Model"] for row in cells(found)]
    assert [model.text for model in models] == ["teacher", "student"]
    assert [model.small.rpartition(", ")[2] for model in models] == ["batch 1", "batch 32"]
    assert cells(found)[1]["Predictions an hour"].value == 3600 * 9000


def test_a_model_whose_speed_is_known_roughly_only_has_its_cost() -> None:
    rough = replace(STUDENT, noise=0.4, speedup_with_tokenizer_low=2.0, speedup_with_tokenizer_high=15.0)
    assert costs("cpu=1", lines=[TEACHER, rough]).table == costs("cpu=1").table


def test_energy_is_shown_where_it_was_measured() -> None:
    found = costs("cpu=1", lines=[TEACHER, replace(STUDENT, energy_joules_per_row=0.0123)])
    assert [row["Energy a prediction"].text for row in cells(found)] == ["–", "0.0123 J"]
    assert "Energy a prediction" not in costs("cpu=1").table.headings
