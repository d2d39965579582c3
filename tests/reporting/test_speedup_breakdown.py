"""Where a speed-up comes from: every step by its own measured factor, nothing guessed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.results.files import Result, Results, results_of
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.gating.check import GateBudget, check
from compress.reporting.report import view
from compress.reporting.sections import gather
from compress.reporting.speedup_breakdown import Waterfall, waterfalls
from compress.reporting.terminal import results_table
from tests.support.report_study import sha256
from tests.support.results import line, write_lines

ROUNDS = 5


def made(name: str, runtime: str, milliseconds: float, *, stage: str = "", parent: str = "", **fields: Any) -> Any:
    """Return a line that takes the same time in every round, by both clocks; the teacher has no parent."""
    took = [[milliseconds] * 3] * ROUNDS
    return line(
        name,
        kind=fields.pop("kind", "model" if parent else "teacher"),
        runtime=runtime,
        stage=stage,
        model_sha256=sha256(name),
        parents=[sha256(parent)] if parent else [],
        latency_p50_ms=milliseconds,
        **{"latency_ms": took, "latency_cpu_ms": took} | fields,
    )


STOCK = made("t", "torch", 40.0, padding="max_length")
BASE = made("t", "torch", 10.0)
FAST = made("t", "onnxruntime", 5.0)
STUDENT = made("s", "onnxruntime", 1.0, stage="distill", parent="t")
INT8 = made("s-int8", "onnxruntime", 0.4, stage="quantize", parent="s")
THREADS = made("s-int8", "onnxruntime", 0.25, stage="quantize", parent="s", threads=4)


def fall(*lines: Measurement, best: Measurement = INT8) -> Waterfall:
    (found,) = waterfalls(Result((best,)), lines)
    return found


def factors(found: Waterfall) -> list[tuple[str, float]]:
    return [(step.name, round(step.value, 6)) for step in found.steps]


def test_the_product_of_the_factors_is_the_whole_speedup() -> None:
    found = fall(STOCK, BASE, FAST, STUDENT, INT8, THREADS)
    assert factors(found) == [
        ("dynamic padding", 4.0),
        ("runtime: torch → onnxruntime", 2.0),
        ("distillation", 5.0),
        ("int8", 2.5),
        ("threads: 1 → 4", 1.6),
    ]
    assert found.product == pytest.approx(160) and found.total.value == pytest.approx(160) and found.missing == []
    assert "from t in torch, padded to 128, 1 thread to s-int8 in onnxruntime, 4 threads, it is ×160" in found.sentence
    assert "a difference of 0.0%" in found.sentence and found.total.low < 160 < found.total.high


def test_more_threads_that_are_slower_are_no_step() -> None:
    found = fall(BASE, FAST, STUDENT, INT8, replace(THREADS, latency_p50_ms=0.5))
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
    line_of_two = replace(INT8, parents=[sha256("s"), sha256("t")])
    found = fall(BASE, FAST, line_of_two, best=line_of_two)
    assert factors(found)[1:] == [("int8 and what came before", 12.5)]
    stranger = made("x", "onnxruntime", 1.0, kind="model")
    assert factors(fall(BASE, FAST, stranger, best=stranger))[1:] == [("another model", 5.0)]


def test_a_cascade_is_one_step_and_not_made_of_its_first_member() -> None:
    fields = {"kind": "cascade", "stage": "cascade", "members": ["s", "t"]}
    both = replace(made("c", "onnxruntime", 2.0, **fields), parents=[sha256("s"), sha256("t")])
    assert factors(fall(BASE, FAST, STUDENT, both, best=both))[1:] == [("cascade", 2.5)]


def test_a_cascade_is_compared_by_mean_times() -> None:
    """Its second member answers one batch in three: the median of the ratios would not count it."""
    fields = {"kind": "cascade", "stage": "cascade", "members": ["s", "t"]}
    took = [[1.0, 1.0, 10.0]] * ROUNDS
    both = made("c", "onnxruntime", 1.0, latency_ms=took, latency_cpu_ms=took, **fields)
    both = replace(both, parents=[sha256("s"), sha256("t")])
    assert factors(fall(BASE, FAST, STUDENT, both, best=both))[1:] == [("cascade", 1.25)]  # 3 x 5 ms to 12 ms
    uneven = [[4.0, 5.0, 9.0]] * ROUNDS
    fast = replace(FAST, latency_ms=uneven, latency_cpu_ms=uneven)
    found = fall(BASE, fast, STUDENT, both, best=both)
    assert found.product == pytest.approx(found.total.value) == pytest.approx(2.5)  # 3 x 10 ms to 12 ms


def test_pruning_and_int8_of_it() -> None:
    pruned = made("p", "torch", 8.0, stage="prune", parent="t")
    best = made("p-int8", "torch", 4.0, stage="quantize", parent="p")
    assert factors(fall(BASE, pruned, best, best=best)) == [("pruning", 1.25), ("int8", 2.0)]


def of(parent: str, removals: list[str], milliseconds: float, **fields: Any) -> Any:
    """Return the line of a pruning step of a pruned model."""
    no_quality = dict.fromkeys(("metric_name", "metric", "metric_low", "metric_high", "difference_points"))
    name = f"{parent}: {'+'.join(removals)}"
    return made(
        name, "torch", milliseconds, kind="pruning-step", parent=parent, removals=removals, **no_quality, **fields
    )


ALL = ["vocabulary", "layers", "heads", "neurons", "hidden"]
PRUNED = made("p", "torch", 1.0, stage="prune", parent="t", removals=ALL)
BETWEEN = [of("p", ALL[:count], took) for count, took in ((1, 8.0), (2, 4.0), (3, 2.0), (4, 1.25))]


def test_every_removal_is_a_step_up_to_the_pruned_model() -> None:
    best = made("p-int8", "torch", 0.5, stage="quantize", parent="p")
    stranger = of("q", ["layers"], 7.0)  # of another model
    found = fall(BASE, PRUNED, best, *reversed(BETWEEN), stranger, best=best)
    assert factors(found) == [
        ("smaller vocabulary", 1.25),
        ("layers removed", 2.0),
        ("heads removed", 2.0),
        ("feed-forward neurons removed", 1.6),
        ("narrower", 1.25),
        ("int8", 2.0),
    ]
    assert found.product == pytest.approx(20) and found.total.value == pytest.approx(20)
    assert found.steps[4].after == "p in torch, 1 thread" and found.total.before == "t in torch, 1 thread"
    assert "a difference of 0.0%. Shapes between removals were measured with random weights" in found.sentence
    assert "--pruning-steps" not in found.sentence


def test_unmeasured_removals_are_one_step_with_advice() -> None:
    found = fall(BASE, PRUNED, best=PRUNED)
    assert factors(found) == [("pruning", 10.0)] and found.missing == ["dynamic padding", "threads"]
    assert (
        "smaller vocabulary, layers removed" in found.note and "'compress benchmark --pruning-steps'" in found.sentence
    )
    assert "random weights" not in found.sentence
    incomplete = fall(BASE, PRUNED, *BETWEEN[:2], best=PRUNED)  # a shape is not there
    assert factors(incomplete) == [("pruning", 10.0)]


def test_one_removal_has_its_name_and_needs_no_pruning_steps() -> None:
    shallow = made("p", "torch", 5.0, stage="prune", parent="t", removals=["layers"])
    found = fall(BASE, shallow, best=shallow)
    assert factors(found) == [("layers removed", 2.0)] and found.note == ""
    assert fall(replace(BASE, removals=ALL), shallow, best=shallow).note == ""  # the teacher is where it begins


def test_removal_steps_survive_a_missing_parent_and_new_runtime() -> None:
    best = replace(PRUNED, runtime="onnxruntime", parents=[sha256("s"), sha256("t")], removals=["layers", "heads"])
    between = replace(of("p", ["layers"], 2.5), runtime="onnxruntime")
    assert factors(fall(BASE, FAST, best, between, best=best)) == [
        ("runtime: torch → onnxruntime", 2.0),
        ("layers removed and what came before", 2.0),
        ("heads removed", 2.5),
    ]


def test_structures_are_in_nothing_but_the_waterfall(tmp_path: Path) -> None:
    between = [replace(one, speedup=99.0, speedup_low=98.0, speedup_high=100.0) for one in BETWEEN]
    lines = [BASE, PRUNED, *between]
    assert [row.small_batch.model for row in results_of(lines)] == ["t", "p"]
    (part,) = gather(lines)
    names = [row.small_batch.model for rows in (part.rows, part.swept, part.fixed) for row in rows]
    assert set(names) == {"t", "p"}
    page = view(Results(tuple(lines)))
    (shown,) = page.sections
    assert [row.model for row in shown.table.rows] == ["t", "p"] and "pruning-step" not in shown.kinds
    assert shown.picture is not None and "p: vocabulary" not in shown.picture.wide + " ".join(shown.verdict)
    assert [row[0].text for row in page.models.rows] == ["t", "p"] and len(shown.waterfalls[0].steps) == 5
    path = write_lines(tmp_path / "r.jsonl", lines)
    assert {one.subject for one in check([path], [GateBudget(min_speedup=2.0)]).judgements} == {"p in torch"}
    with pytest.raises(CompressError, match="no line with model 'p: vocabulary'"):
        check([path], [GateBudget(model="p: vocabulary", min_speedup=2.0)])
    assert results_table(lines).row_count == 2


def test_every_pruned_model_that_was_taken_apart_has_its_steps() -> None:
    quality = {"metric": 0.5, "metric_low": 0.4, "metric_high": 0.6, "difference_points": -40.0}  # no leader
    other = made("q", "torch", 2.0, stage="prune", parent="t", removals=["layers", "heads"], **quality)
    int8 = made("q-int8", "torch", 1.6, stage="quantize", parent="q", **quality)
    whole = made("r", "torch", 2.0, stage="prune", parent="t", removals=["layers", "heads"], **quality)
    rival = replace(int8, kind="competitor", runtime="openvino-int8", latency_ms=[[0.5] * 3] * ROUNDS)
    lines = [BASE, PRUNED, *BETWEEN, other, int8, of("q", ["layers"], 4.0), whole, rival]
    lines = [replace(line, speedup=10.0 / line.latency_ms[0][0]) for line in lines]
    large = [replace(line, batch_size=32) for line in lines]
    small = [line for line in lines if line.model != "q-int8"]  # which was measured at batch 32 alone
    (shown,) = view(Results((*small, *large))).sections
    told = [(found.model, found.batch_size) for found in shown.waterfalls]
    assert told == [("p", 1), ("p", 32), ("q", 1), ("q-int8", 32)]
    steps = [("layers removed", 2.5), ("heads removed", 2.0)]
    assert factors(shown.waterfalls[2]) == steps and factors(shown.waterfalls[3]) == [*steps, ("int8", 1.25)]


def test_lines_of_another_run_length_or_device_do_not_count() -> None:
    for change in ({"created": "2026-01-01T00:00:00+00:00"}, {"length": 16}, {"device": "cuda"}):
        found = fall(replace(STOCK, **change), BASE, replace(FAST, **change), replace(THREADS, **change), STUDENT, INT8)
        assert "dynamic padding" in found.missing and "threads" in found.missing


def test_a_model_without_a_matching_measurement_is_skipped() -> None:
    student_in_torch = made("s", "torch", 2.0, stage="distill", parent="t")
    found = fall(BASE, FAST, student_in_torch, INT8)
    assert [name for name, _ in factors(found)] == ["runtime: torch → onnxruntime", "distillation and int8"]
    assert found.product == pytest.approx(found.total.value) and "difference of 0.0%" in found.sentence
    assert "not measured" in fall(BASE, STUDENT, INT8).sentence


def test_a_step_known_roughly_only_is_a_step_with_its_wide_interval() -> None:
    varying = [[milliseconds] * 3 for milliseconds in (0.3, 0.5, 1.0, 2.0, 3.0)]
    found = fall(BASE, FAST, replace(STUDENT, latency_cpu_ms=varying, noise=0.7), INT8)
    assert factors(found)[1:] == [("distillation", 5.0), ("int8", 2.5)]
    assert found.steps[1].high > 1.25 * found.steps[1].low and found.product == pytest.approx(25)


def test_a_step_compares_cpu_times_unless_one_side_has_several_threads() -> None:
    disturbed, of_all_threads = [[50.0] * 3] * ROUNDS, [[1.0] * 3] * ROUNDS
    threads = replace(THREADS, clock="wall", latency_cpu_ms=of_all_threads)
    found = fall(BASE, replace(FAST, latency_ms=disturbed), STUDENT, INT8, threads)
    assert [value for _, value in factors(found)] == [2.0, 5.0, 2.5, 1.6]


def test_one_for_each_end_of_the_batch_sizes() -> None:
    lines = [BASE, FAST, STUDENT, INT8]
    lines += [replace(one, batch_size=32, latency_cpu_ms=[[9.0] * 3] * ROUNDS) for one in lines]
    (best,) = [row for row in results_of(lines) if row.small_batch.model == "s-int8"]
    assert [found.batch_size for found in waterfalls(best, lines)] == [1, 32]
    lines += [replace(one, created="2026-12-01T00:00:00+00:00") for one in lines if one.batch_size == 1]
    (best,) = [row for row in results_of(lines) if row.small_batch.model == "s-int8"]
    assert [found.batch_size for found in waterfalls(best, lines)] == [1, 32]  # of the newer run, and of the first


def test_a_circle_of_parents_ends() -> None:
    one, other = made("a", "torch", 4.0, stage="prune", parent="b"), made("b", "torch", 5.0, stage="prune", parent="a")
    found = fall(BASE, one, other, best=one)
    assert found.total.value == pytest.approx(2.5)
