"""The summary of a report: baselines, the best model, a faster one that is not certain, controls, competitors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compress.benchmarking.benchmark as benchmark_module
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.results.verdict import JudgedLines, judge_drop_of
from compress.cli import execute
from compress.reporting.sections import control_pair, gather, section, verdict
from tests.support.results import line

TEACHER = line("teacher", kind="teacher")


def model(name: str, speedup: float, low: float = -0.9, high: float = -0.1, **fields: Any) -> Measurement:
    """Return a line whose loss lies between two points."""
    middle = (low + high) / 2
    fields = {"speedup_low": 0.98 * speedup, "speedup_high": 1.02 * speedup, "metric": 0.9 + middle / 100} | fields
    return line(name, speedup=speedup, difference_points=middle, difference_low=low, difference_high=high, **fields)


def said(*lines: Measurement, budget: float = 1.0) -> list[str]:
    return verdict(JudgedLines([TEACHER, *lines], budget))


def test_a_model_within_comes_before_a_faster_undecided_one() -> None:
    lines = [TEACHER, model("sure", 5), model("open", 40, -1.6, 2.0), model("bad", 90, -9, -7)]
    judged = JudgedLines(lines)
    assert (judged.best, judged.faster) == (lines[1], lines[2])
    assert JudgedLines([*lines[:2], model("open", 5.1, -1.6, 2.0)]).faster is None  # not surely faster
    first, _, second = said(*lines[1:])[:3]
    assert first.startswith(
        "sure in torch keeps 99.4% of the teacher’s accuracy at ×5.00 its speed from text to label (×4.90 to ×5.10)"
    )
    assert second.startswith("open in torch is faster still, ×40.0") and "more examples would decide" in second


def test_lines_of_schemas_without_labels_are_not_called_from_text_to_label() -> None:
    lines = [replace(one, schema=4) for one in (TEACHER, model("sure", 5))]
    (found,) = gather(lines)
    shown = section(found, {})
    told = [*shown.verdict, *shown.notes, shown.picture.wide if shown.picture else ""]
    assert not [one for one in told if "to label" in one]
    assert "at ×5.00 its speed from text to logits" in shown.verdict[0]
    assert any(note.startswith("Speed-ups are from text to logits") for note in shown.notes)
    (found,) = gather([*lines, model("new", 4)])
    assert any(
        note.startswith("Speed-ups are from text to logits or from text to label") for note in section(found, {}).notes
    )


def test_without_a_sure_one_the_doubt_is_in_the_first_sentence() -> None:
    sentences = said(model("open", 40, -1.6, 2.0), model("bad", 90, -9, -7))
    assert sentences[0].startswith(
        "open in torch keeps 99.4% of the teacher’s accuracy at ×40.0 its speed from text to label (×39.2 to"
    )
    assert sentences[0].endswith("whether that is within 1 point is undecided.")
    assert "more examples would decide" in sentences[1]


def test_no_model_within_the_budget_is_said() -> None:
    first = said(model("bad", 90, -9, -7))[0]
    assert first.startswith("No model is within 1 point of the teacher. The closest, bad in torch, keeps 99.4%")
    assert said(model("bad", 90, -9, -7), budget=10.0)[0].endswith("(×88.2 to ×91.8): within 10 points of the teacher.")


def test_an_undecided_model_comes_before_one_beyond_the_budget() -> None:
    first = said(model("worse", 5, -1.9, -1.1), model("wide", 4, -3.0, -0.2))[0]
    assert first.startswith("wide in torch") and first.endswith("whether that is within 1 point is undecided.")


def test_a_model_is_held_against_the_teacher_of_its_own_run() -> None:
    other = line("other teacher", kind="teacher", metric=0.5, created="2026-01-01T00:00:00+00:00")
    sentences = verdict(JudgedLines([other, TEACHER, model("m", 5)]))
    assert "against 90.00%" in sentences[1]


def test_only_the_teacher_or_none_at_all() -> None:
    assert said() == ["No compressed model was measured here, so there is none to judge."]
    assert "teacher in torch was not measured" in verdict(JudgedLines([model("a", 5)]))[0]


def test_a_baseline_within_the_budget_comes_first() -> None:
    baseline = model("tf-idf + logistic regression", 300, -0.8, 0.2, kind="baseline")
    sentences = said(model("student", 40), baseline)
    assert sentences[0].startswith("tf-idf + logistic regression alone is within 1 point of the teacher: 89.70%")
    assert sentences[1].startswith("student in torch keeps 99.4% of the teacher’s accuracy at ×40.0")
    assert said(baseline)[0] == sentences[0] and "No compressed model" in said(baseline)[1]


def test_other_baselines_come_after_the_model() -> None:
    open_floor = model("static", 300, -1.4, 0.8, kind="baseline")
    assert any(s.startswith("static alone may be enough") and "undecided" in s for s in said(model("m", 4), open_floor))
    wide = (model("narrow", 300, -1.8, -1.1, kind="baseline"), model("wide", 300, -3.2, -0.1, kind="baseline"))
    assert any(s.startswith("wide alone may be enough") for s in said(model("m", 4), *wide))
    bad_floors = (model("majority", 9e3, -40, -38, kind="baseline"), model("static", 300, -8, -6, kind="baseline"))
    assert "No baseline is within 1 point: the best, static, is at −7.00 points (−8.00 to −6.00)." in said(
        model("m", 4), *bad_floors
    )


def test_a_faster_competitor_is_named() -> None:
    competitor = model("int8-elsewhere", 60, kind="competitor", runtime="elsewhere")
    expected = (
        "A competitor is faster: int8-elsewhere in elsewhere at ×60.0 (×58.8 to ×61.2), at −0.50 points "
        "(−0.90 to −0.10): within 1 point."
    )
    assert expected in said(model("m", 40), competitor)
    wide = model("wide", 60, -1.6, 1.0, kind="competitor")
    assert any("A competitor is faster" in s and s.endswith("is undecided.") for s in said(model("m", 40), wide))
    assert not any("competitor" in s for s in said(model("m", 59.9), competitor))  # not surely
    for low, named in ((40.7, False), (40.9, True)):  # against ×40.8 at most: a wide interval decides by its bound
        sentences = said(
            model("m", 40), replace(competitor, speedup_with_tokenizer_low=low, speedup_with_tokenizer_high=99.0)
        )
        assert any("competitor" in s for s in sentences) == named


def test_a_competitor_is_compared_from_text_to_label() -> None:
    competitor = model("pipeline", 50, kind="competitor", tokenizer_inside=True, speedup_with_tokenizer_low=49.0)
    slow = model("m", 60, speedup_with_tokenizer_high=20.0)
    expected = "A competitor is faster: pipeline in torch at ×50.0 (×49.0 to ×51.0)"
    assert any(expected in s for s in said(slow, competitor))
    fast = model("m", 40, speedup_with_tokenizer_high=49.5)
    assert not any("competitor" in s for s in said(fast, competitor))


def test_a_speed_known_roughly_only_is_shown_marked_and_explained() -> None:
    rough = model("rough", 40, speedup_low=30.0, speedup_high=53.0, noise=0.31)
    first, *_, last = said(model("exact", 5), rough)
    assert first.endswith(
        "at ×40.0 its speed from text to label (×30.0 to ×53.0, wide): within 1 point of the teacher."
    )
    assert last.startswith("Known roughly only: 1 speed-up of 2. ") and "a longer --time-limit" in last
    assert not any("roughly" in sentence for sentence in said(model("exact", 5)))


def test_what_distillation_is_worth_leaves_int8_out() -> None:
    student = model("bilstm", 20, recipe="bilstm", metric=0.91)
    int8 = model("bilstm-int8", 40, recipe="bilstm", metric=0.90)
    control = model("bilstm-control", 20, kind="control", recipe="bilstm", control_of="bilstm", metric=0.85)
    pair = control_pair(int8, [TEACHER, student, int8, control])
    assert pair is not None and [line.model for line in pair] == ["bilstm", "bilstm-control"]
    assert any("worth +6.00 points; without predictions" in s for s in said(student, int8, control))
    int8 = replace(int8, stage="quantize")
    assert control_pair(int8, [TEACHER, int8, control]) is None


def test_a_control_that_several_students_share_is_each_ones() -> None:
    fields = {"control": "one-control", "stage": "distill"}
    one = model("one", 20, recipe="one", metric=0.91, **fields)
    two = model("two", 30, recipe="two", metric=0.89, model_sha256="2" * 64, **fields)
    int8 = model("two-int8", 50, recipe="two", metric=0.88, parents=["2" * 64], **fields | {"stage": "quantize"})
    control = model("one-control", 20, kind="control", recipe="one", control_of="one", metric=0.85)
    for made, student in ((one, "one"), (two, "two"), (int8, "two")):
        pair = control_pair(made, [TEACHER, one, two, int8, control])
        assert pair is not None and [one.model for one in pair] == [student, "one-control"]
    assert control_pair(int8, [TEACHER, one, int8, control]) is None  # the student before int8 was not measured


def test_an_interval_that_holds_zero_takes_the_worth_back() -> None:
    gold = [0, 1] * 50
    teacher = replace(TEACHER, gold=gold, predictions=gold)
    student = model("s", 20, predictions=[1, *gold[1:]], metric=0.99)
    control = model("c", 20, kind="control", control_of="s", predictions=[1, 0, *gold[2:]], metric=0.98)
    sentences = verdict(JudgedLines([teacher, student, control]))
    assert any("worth +1.00 points (" in s and " to +" in s and "do not show that it helped" in s for s in sentences)


@pytest.mark.parametrize(("low", "high", "outcome"), [(-1, 1, "within"), (-3, -1.01, "worse"), (-3, 1, "undecided")])
def test_the_words_of_a_cell(low: float, high: float, outcome: str) -> None:
    judged = judge_drop_of(model("m", 5, low, high), 1.0)
    assert judged is not None and judged.outcome == outcome
    assert judge_drop_of(line("b", kind="reference-model", difference_points=None), 1.0) is None


def with_spam(ham: int, recall: float) -> list[dict[str, Any]]:
    figures = {"teacher_recall": 0.9, "difference_points": 0.0, "low": None, "high": None}
    rare = {"label": "spam", "rows": 200, "recall": recall, "average_precision": 0.75, **figures}
    return [{"label": "ham", "rows": ham, "recall": 1.0, **figures}, rare]


@pytest.mark.parametrize(("ham", "accuracy"), [(1800, "90.0%"), (300, "")])
def test_what_accuracy_hides_of_a_rare_class_is_said_in_report_and_terminal(
    ham: int, accuracy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = replace(TEACHER, classes=with_spam(ham, 0.9)), model("small", 5, classes=with_spam(ham, 0.8))
    expected = (
        f"Always answering 'ham' has an accuracy of {accuracy}: of the 200 rows of 'spam' teacher finds 90.0% "
        "(average precision 75.0%) and small in torch finds 80.0% (average precision 75.0%)."
    )
    found = [one for one in verdict(JudgedLines(lines)) if one.startswith("Always answering")]
    assert found == ([expected] if accuracy else [])
    monkeypatch.setattr(benchmark_module, "benchmark", lambda *_, **__: lines)
    (tmp_path / "test.csv").write_text("text,label\nfine,ham\nwin,spam\n")
    words = ["benchmark", "--teacher", "t", "--model", "m", "--data", str(tmp_path / "test.csv"), "-o", "x.jsonl"]
    assert execute(words) == 0
    assert (expected in capsys.readouterr().out.splitlines()) == bool(accuracy)


def test_cut_rows_are_said_by_the_models_that_cut_them() -> None:
    cut = [replace(model(name, 5), truncated_rows=rows) for name, rows in (("a", 20), ("b", 20), ("c", 3), ("d", 0))]
    of = cut[0].data_rows
    said = [one for one in verdict(JudgedLines((TEACHER, *cut))) if "and cut" in one]
    assert said == [
        f"Longer than what is read, and cut: {rows} of {of:,} rows ({rows / of:.1%}) by {by}."
        for rows, by in ((20, "a, b"), (3, "c"))
    ]
