"""Where a speed-up comes from: every step by its own measured factor, nothing guessed."""

from __future__ import annotations

from typing import Any

import pytest
from lines import line
from made_study import sha256

from compress.measuring.results import Row, rows_of
from compress.reporting.waterfall import Waterfall, waterfalls

ROUNDS = 5


def made(name: str, runtime: str, milliseconds: float, *, stage: str = "", parent: str = "", **fields: Any) -> Any:
    """Return a line that takes the same time in every round; the teacher has no parent."""
    return line(
        name, kind=fields.pop("kind", "model" if parent else "teacher"), runtime=runtime, stage=stage,
        model_sha256=sha256(name), parents=[sha256(parent)] if parent else [],
        latency_ms=[[milliseconds] * 3] * ROUNDS, latency_p50_ms=milliseconds, **fields,
    )  # fmt: skip


STOCK = made("t", "torch", 40.0, padding="max_length")
BASE = made("t", "torch", 10.0)
FAST = made("t", "onnxruntime", 5.0)
STUDENT = made("s", "onnxruntime", 1.0, stage="distill", parent="t")
INT8 = made("s-int8", "onnxruntime", 0.4, stage="quantize", parent="s")
THREADS = made("s-int8", "onnxruntime", 0.25, stage="quantize", parent="s", threads=4)


def fall(*lines: dict[str, Any], best: dict[str, Any] = INT8) -> Waterfall:
    (found,) = waterfalls(Row((best,)), lines)
    return found


def factors(found: Waterfall) -> list[tuple[str, float]]:
    return [(step.name, round(step.value, 6)) for step in found.steps]


def test_every_step_is_its_own_factor_and_the_product_is_the_whole() -> None:
    found = fall(STOCK, BASE, FAST, STUDENT, INT8, THREADS)
    assert factors(found) == [
        ("dynamic padding", 4.0), ("runtime: torch → onnxruntime", 2.0), ("distillation", 5.0), ("int8", 2.5),
        ("threads: 1 → 4", 1.6),
    ]  # fmt: skip
    assert found.product == pytest.approx(160) and found.total.value == pytest.approx(160) and found.missing == []
    assert "from t in torch, padded to 128, 1 thread to s-int8 in onnxruntime, 4 threads, it is ×160" in found.sentence
    assert "a difference of 0.0%" in found.sentence and found.total.low < 160 < found.total.high


def test_more_threads_that_are_slower_are_no_step() -> None:
    found = fall(BASE, FAST, STUDENT, INT8, {**THREADS, "latency_p50_ms": 0.5})
    assert factors(found)[-1][0] == "int8" and "threads" not in found.missing
    assert found.total.value == pytest.approx(25)


def test_what_was_not_measured_is_left_out_and_named() -> None:
    found = fall(BASE, FAST, STUDENT, INT8)
    assert [name for name, _ in factors(found)] == ["runtime: torch → onnxruntime", "distillation", "int8"]
    assert found.missing == ["dynamic padding", "threads"] and found.total.value == pytest.approx(25)


def test_a_runtime_that_the_teacher_was_not_measured_in() -> None:
    student_in_torch = made("s", "torch", 2.0, stage="distill", parent="t")
    found = fall(BASE, student_in_torch, STUDENT, INT8)
    assert factors(found) == [("distillation", 5.0), ("runtime: torch → onnxruntime", 2.0), ("int8", 2.5)]
    found = fall(BASE, STUDENT, INT8)
    assert factors(found) == [("int8", 2.5)]
    assert found.missing == ["dynamic padding", "runtime: torch → onnxruntime", "distillation", "threads"]
    assert found.total.value == pytest.approx(25) and "the rest lies in steps" in found.sentence


def test_a_parent_that_was_not_measured_is_said_to_be_inside() -> None:
    line_of_two = {**INT8, "parents": [sha256("s"), sha256("t")]}
    found = fall(BASE, FAST, line_of_two, best=line_of_two)
    assert factors(found)[1:] == [("int8 and what came before", 12.5)]
    stranger = made("x", "onnxruntime", 1.0, kind="model")
    assert factors(fall(BASE, FAST, stranger, best=stranger))[1:] == [("another model", 5.0)]


def test_pruning_and_int8_of_it() -> None:
    pruned = made("p", "torch", 8.0, stage="prune", parent="t")
    best = made("p-int8", "torch", 4.0, stage="quantize", parent="p")
    assert factors(fall(BASE, pruned, best, best=best)) == [("pruning", 1.25), ("int8", 2.0)]


def test_lines_of_another_run_length_or_device_do_not_count() -> None:
    for change in ({"created": "2026-01-01T00:00:00+00:00"}, {"length": 16}, {"device": "cuda"}):
        found = fall({**STOCK, **change}, BASE, {**FAST, **change}, {**THREADS, **change}, STUDENT, INT8)
        assert "dynamic padding" in found.missing and "threads" in found.missing


def test_a_model_that_was_not_measured_where_its_neighbours_were_is_stepped_over() -> None:
    student_in_torch = made("s", "torch", 2.0, stage="distill", parent="t")
    found = fall(BASE, FAST, student_in_torch, INT8)
    assert [name for name, _ in factors(found)] == ["runtime: torch → onnxruntime", "distillation and int8"]
    assert found.product == pytest.approx(found.total.value) and "difference of 0.0%" in found.sentence
    assert "not measured" in fall(BASE, STUDENT, INT8).sentence


def test_a_noisy_step_is_left_out_with_its_reason() -> None:
    found = fall(BASE, FAST, {**STUDENT, "noisy": True}, INT8)
    assert [name for name, _ in factors(found)] == ["runtime: torch → onnxruntime"]
    assert "distillation (the host was too noisy)" in found.missing
    assert waterfalls(Row((INT8,)), [{**BASE, "noisy": True}, FAST, STUDENT, INT8]) == []


def test_one_for_each_end_of_the_batch_sizes() -> None:
    lines = [BASE, FAST, STUDENT, INT8]
    lines += [{**one, "batch_size": 32, "latency_ms": [[9.0] * 3] * ROUNDS} for one in lines]
    (best,) = [row for row in rows_of(lines) if row.head["model"] == "s-int8"]
    assert [found.batch_size for found in waterfalls(best, lines)] == [1, 32]


def test_a_circle_of_parents_ends() -> None:
    one, other = made("a", "torch", 4.0, stage="prune", parent="b"), made("b", "torch", 5.0, stage="prune", parent="a")
    found = fall(BASE, one, other, best=one)
    assert found.total.value == pytest.approx(2.5)
