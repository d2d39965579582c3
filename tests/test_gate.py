"""Budgets: what holds, what is broken, what cannot be decided, and what is the user's mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lines import line, write_lines

from compress import gate
from compress.errors import CompressError


@pytest.fixture
def results(tmp_path: Path) -> Any:
    def make(*lines: dict[str, Any], name: str = "results.jsonl") -> Path:
        return write_lines(tmp_path / name, [line("teacher", kind="teacher"), *lines])

    return make


def student(**fields: Any) -> dict[str, Any]:
    return line("student", runtime="onnxruntime", **fields)


@pytest.mark.parametrize(
    ("low", "high", "budget", "code"),
    [(-0.9, 0.3, 1.0, 0), (-3.0, -1.2, 1.0, 1), (-2.0, 0.4, 1.0, 3), (-1.0, 0.0, 1.0, 0), (0.5, 2.0, 0.0, 0)],
)
def test_the_drop_is_judged_by_its_interval(results: Any, low: float, high: float, budget: float, code: int) -> None:
    path = results(student(difference_points=(low + high) / 2, difference_low=low, difference_high=high))
    verdict = gate.check([path], max_accuracy_drop=budget)
    assert verdict.exit_code == code and len(verdict.sentences) == 1
    assert f"{budget:g} points of accuracy" in verdict.sentences[0]


def test_an_undecided_drop_names_the_examples_it_needs(results: Any) -> None:
    # 0.2 from the budget with a half width of 1.0 on 1,000 rows: 25 times as many rows, 24,000 more.
    path = results(student(difference_points=-0.8, difference_low=-1.8, difference_high=0.2, metric_rows=1000))
    (sentence,) = gate.check([path], max_accuracy_drop=1.0).sentences
    assert "about 24,000 more examples would decide" in sentence
    assert "0.80 lost on 1,000 examples (95% interval 0.20 won to 1.80 lost)" in sentence


def test_a_drop_that_is_the_budget_needs_no_number(results: Any) -> None:
    path = results(student(difference_points=-1.0, difference_low=-2.0, difference_high=0.0))
    assert "hardly decide" in gate.check([path], max_accuracy_drop=1.0).sentences[0]


@pytest.mark.parametrize(("low", "high", "code"), [(5.0, 6.0, 0), (3.0, 4.9, 1), (4.5, 5.5, 3)])
def test_the_speedup_is_judged_by_its_interval(results: Any, low: float, high: float, code: int) -> None:
    path = results(student(speedup=(low + high) / 2, speedup_low=low, speedup_high=high))
    verdict = gate.check([path], min_speedup=5)
    assert verdict.exit_code == code
    assert ("quieter machine" in verdict.sentences[0]) == (code == 3)


def test_size_is_exact(results: Any) -> None:
    path = results(student(size_bytes=4_400_000))
    assert gate.check([path], max_size_bytes=4_400_000).exit_code == 0
    assert gate.check([path], max_size_bytes=4_399_999).exit_code == 1


def test_broken_wins_over_undecided(results: Any) -> None:
    path = results(student(speedup_low=4.0, speedup_high=6.0, difference_low=-9.0, difference_high=-5.0))
    verdict = gate.check([path], min_speedup=5, max_accuracy_drop=1)
    assert [j.outcome for j in verdict.judgements] == ["broken", "undecided"] and verdict.exit_code == 1


def test_teachers_and_controls_are_not_judged_unless_named(results: Any) -> None:
    control = line("undistilled", kind="control", speedup_low=0.1, speedup_high=0.2)
    path = results(student(speedup_low=9.0, speedup_high=10.0), control)
    assert gate.check([path], min_speedup=5).exit_code == 0
    assert gate.check([path], min_speedup=5, models=["undistilled"]).exit_code == 1


def test_models_and_runtimes_are_chosen_by_name(results: Any) -> None:
    path = results(student(), line("student", runtime="torch", speedup_low=0.5, speedup_high=0.6))
    assert gate.check([path], min_speedup=5, runtimes=["onnxruntime"]).exit_code == 0
    assert gate.check([path], min_speedup=5).exit_code == 1
    with pytest.raises(CompressError, match="Did you mean 'student'"):
        gate.check([path], min_speedup=5, models=["studnet"])


def test_the_batch_size_is_the_smallest_unless_given(results: Any) -> None:
    path = results(student(), student(batch_size=32, speedup_low=2.0, speedup_high=3.0))
    assert gate.check([path], min_speedup=5).exit_code == 0
    assert gate.check([path], min_speedup=5, batch_size=32).exit_code == 1
    with pytest.raises(CompressError, match="--batch-size 8 was not measured; there is 1, 32"):
        gate.check([path], min_speedup=5, batch_size=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no budget to check"),
        ({"max_accuracy_drop": -1}, "--max-accuracy-drop -1"),
        ({"min_speedup": 0}, "--min-speedup 0"),
        ({"min_speedup": float("nan")}, "--min-speedup nan"),
        ({"max_size_bytes": 0}, "--max-size 0"),
    ],
)
def test_wrong_budgets_are_the_users_mistake(results: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        gate.check([results(student())], **options)


def test_nothing_to_judge_is_the_users_mistake(results: Any) -> None:
    with pytest.raises(CompressError, match="no model to judge"):
        gate.check([results()], min_speedup=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no results"),
        ("{not json", "line 1 is not valid JSON"),
        ('{"a": 1}', "is not a result of compress benchmark"),
        (json.dumps({**line("x"), "schema": 99}), "schema 99"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    with pytest.raises(CompressError, match=message):
        gate.check([path], min_speedup=5)
    with pytest.raises(CompressError, match="does not exist"):
        gate.check([tmp_path / "none.jsonl"], min_speedup=5)


def predicted(right: int, rows: int = 2000) -> list[int]:
    return [1] * right + [0] * (rows - right)


def test_an_unchanged_model_holds_its_baseline(results: Any) -> None:
    new = student(predictions=predicted(1800))
    teacher = line("teacher", kind="teacher", gold=[1] * 2000)
    verdict = gate.check([results(teacher, new)], baseline=results(new, name="old.jsonl"))
    assert verdict.exit_code == 0 and [j.gate for j in verdict.judgements] == ["baseline-drop", "baseline-speed"]


def test_a_baseline_is_compared_row_by_row_where_predictions_are_kept(results: Any) -> None:
    """60 rows fewer of 2,000: 3 points, certain when paired; two separate intervals of 5 points cannot tell."""
    wide = {"metric_low": 0.85, "metric_high": 0.95}
    old = results(student(metric=0.90, predictions=predicted(1800), **wide), name="old.jsonl")
    now = student(metric=0.87, predictions=predicted(1740), **wide)
    teacher = line("teacher", kind="teacher", gold=[1] * 2000)
    assert gate.check([results(teacher, now)], baseline=old).judgements[0].outcome == "broken"
    unpaired = {key: value for key, value in now.items() if key != "predictions"}
    assert gate.check([results(unpaired)], baseline=old).judgements[0].outcome == "undecided"


@pytest.mark.parametrize(("speedup", "outcome"), [(10.0, "holds"), (7.0, "broken"), (9.0, "undecided")])
def test_a_slower_model_breaks_its_baseline(results: Any, speedup: float, outcome: str) -> None:
    old = results(student(speedup=10.0, speedup_low=9.8, speedup_high=10.2), name="old.jsonl")
    now = student(speedup=speedup, speedup_low=speedup * 0.98, speedup_high=speedup * 1.02)
    judged = gate.check([results(now)], baseline=old).judgements
    assert [j.outcome for j in judged if j.gate == "baseline-speed"] == [outcome]


def test_speed_is_not_compared_across_hosts(results: Any) -> None:
    old = results(student(host_id="other", speedup=99.0, speedup_low=98.0, speedup_high=100.0), name="old.jsonl")
    verdict = gate.check([results(student())], baseline=old)
    assert [j.gate for j in verdict.judgements] == ["baseline-drop"]
    assert "another host" in verdict.notes[0]


def test_a_baseline_of_other_models_is_the_users_mistake(results: Any) -> None:
    with pytest.raises(CompressError, match="has no line for student"):
        gate.check([results(student())], baseline=results(line("else"), name="old.jsonl"))


def test_markdown_escapes_names(results: Any) -> None:
    path = results(line("<b>_x_</b>", runtime="onnxruntime"))
    text = gate.check([path], min_speedup=5).markdown()
    assert text.startswith("## compress check: holds") and "<b>" not in text and "\\_x\\_" in text


def test_the_real_interval_of_a_model_against_itself_holds_one_point() -> None:
    """872 rows of SST-2, no row different: about 0.3 points cannot be excluded, so a budget of 0.1 is undecided."""
    from compress.metrics import METRICS, paired_difference

    same = np.ones(872, int)
    found = paired_difference(same, same, same, metric=METRICS["accuracy"], classes=2)
    assert gate._side(-found.high, -found.low, 1.0) == gate.HOLDS
    assert gate._side(-found.high, -found.low, 0.1) == gate.UNDECIDED
