"""Limits: what holds, what is broken, what cannot be decided, and what is the user's mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compress.cli import execute
from compress.errors import CompressError
from compress.gating import check as check_module
from compress.gating.budgets import GateBudget
from tests.support import REPOSITORY
from tests.support.gating import Results, check, predicted, results, student
from tests.support.results import line, write_lines

__all__ = ["results"]


@pytest.mark.parametrize(
    ("low", "high", "budget", "code"),
    [(-0.9, 0.3, 1.0, 0), (-3.0, -1.2, 1.0, 1), (-2.0, 0.4, 1.0, 3), (-1.0, 0.0, 1.0, 0), (0.5, 2.0, 0.0, 0)],
)
def test_the_drop_is_judged_by_its_interval(
    results: Results, low: float, high: float, budget: float, code: int
) -> None:
    path = results(student(difference_points=(low + high) / 2, difference_low=low, difference_high=high))
    verdict = check([path], max_accuracy_drop=budget)
    assert verdict.exit_code == code and len(verdict.sentences) == 1
    assert f"{budget:g} point{'' if budget == 1 else 's'} of accuracy" in verdict.sentences[0]


def test_a_judgement_names_who_what_and_how_sure(results: Results) -> None:
    path = results(student(difference_points=-0.5, difference_low=-0.9, difference_high=-0.1, metric_rows=1234))
    (judgement,) = check([path], max_accuracy_drop=1.0).judgements
    assert judgement.sentence == (
        "student in onnxruntime: the loss of at most 1 point of accuracy holds: "
        "0.50 lost on 1,234 examples (95% interval 0.10 lost to 0.90 lost)."
    )
    assert (judgement.limit, judgement.value, judgement.low, judgement.high) == (1.0, 0.5, 0.1, 0.9)
    assert (judgement.count, judgement.of) == (1234, "examples")


OWN = {"difference_points": -0.5, "low": -0.9, "high": -0.1, "rows": 2000}
CLASS = {"label": "bad", "recall": 0.89, "recall_low": 0.88, "recall_high": 0.9, "teacher_recall": 0.895, **OWN}
SLICE = {"slice": "l=en", "metric": 0.89, "metric_low": 0.88, "metric_high": 0.9, "teacher_metric": 0.895, **OWN}
LIMITS = {
    "max_accuracy_drop": (1.0, "1 point", "0.50 lost", "0.10 lost to 0.90 lost", "2,000 examples"),
    "max_drop_any_class": (1.0, "1 point of recall in 'bad'", "0.50 lost", "0.10 lost to 0.90 lost", "2,000 examples"),
    "min_recall": (0.87, "87.00% in 'bad'", "89.00%", "88.00% to 90.00%", "2,000 examples"),
    "max_drop_any_slice": (1.0, "1 point of accuracy in 'l=en'", "0.50 lost", "0.10 lost to 0.90 lost", "2,000 exam"),
    "min_metric_any_slice": (0.87, "87.00% in 'l=en'", "89.00%", "88.00% to 90.00%", "2,000 examples"),
    "min_metric": (0.87, "87.00%", "89.50%", "88.00% to 91.50%", "2,000 examples"),
    "max_calibration_error": (0.06, "0.06", "0.030", "0.020 to 0.050", "2,000 examples"),
    "max_truncated": (0.01, "1.00%", "0.50%", "10 of 2,000 rows are longer than 128 tokens", "holds"),
    "min_speedup": (5, "×5.00", "×5.50", "×5.20 to ×5.80", "3 rounds"),
    "min_model_speedup": (5, "×5.00", "×6.00", "×5.70 to ×6.30", "3 rounds"),
    "max_p95_ms": (1.3, "from text to label of at most 1.30 ms", "1.20 ms", "1.18 ms to 1.22 ms", "3 rounds"),
    "max_size": ("90MB", "90 MB", "88 MB", "n = 1, no interval", "88,000,000 bytes"),
    "max_memory": ("201MB", "201 MB", "200 MB", "n = 1, no interval", "200,000,000 bytes"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_states_value_interval_and_n(results: Results, name: str) -> None:
    limit, *said = LIMITS[name]
    verdict = check([results(student(classes=[CLASS], slices=[SLICE], truncated_rows=10))], **{name: limit})
    assert verdict.exit_code == 0 and [j.gate for j in verdict.judgements] == [name]
    assert all(part in verdict.sentences[0] for part in ("student in onnxruntime", *said)), verdict.sentences[0]


def test_a_speed_that_includes_the_tokenizer_is_not_called_the_models(results: Results) -> None:
    verdict = check([results(student(runtime="native", tokenizer_inside=True))], min_model_speedup=5)
    assert "×5.00, from text to label, as its runtime reads texts, at batch 1 holds" in verdict.sentences[0]


def test_every_limit_has_such_a_case() -> None:
    from compress.requests.measuring import LIMITS as known

    assert set(LIMITS) == set(known)


@pytest.mark.parametrize(
    ("name", "limit", "code"),
    [
        ("min_metric", 0.90, 3),
        ("min_metric", 0.92, 1),
        ("min_metric", 0.88, 0),
        ("max_calibration_error", 0.04, 3),
        ("max_calibration_error", 0.01, 1),
        ("max_calibration_error", 0.05, 0),
        ("max_truncated", 0.005, 0),
        ("max_truncated", 0.00499, 1),
        ("max_truncated", 0, 1),
        ("min_speedup", 5.5, 3),
        ("min_speedup", 6, 1),
        ("min_speedup", 5.2, 0),
        ("min_model_speedup", 6.2, 3),
        ("min_model_speedup", 6.4, 1),
        ("max_p95_ms", 1.2, 3),
        ("max_p95_ms", 1.15, 1),
        ("max_p95_ms", 1.23, 0),
        ("max_size", 88_000_000, 0),
        ("max_size", 87_999_999, 1),
        ("max_memory", "200MB", 0),
        ("max_memory", "0.19 GB", 1),
    ],
)
def test_limits_are_judged_by_the_whole_interval(results: Results, name: str, limit: Any, code: int) -> None:
    assert check([results(student(truncated_rows=10))], **{name: limit}).exit_code == code


@pytest.mark.parametrize("words", [2000, 30_000])
def test_an_undecided_drop_names_the_examples_it_needs(results: Results, words: int) -> None:
    """For a metric without counts, 0.2 from the limit with a half width of 1.0 on 2,000 rows.

    (1.96 + 0.84) / 1.96 * 1.0 / 0.2 is 7.15; its square is 51.1 times as many rows, 100,200 more, however many words
    of each are tagged.
    """
    fields = {"difference_points": -0.8, "difference_low": -1.8, "difference_high": 0.2, "metric_name": "macro-f1"}
    now = results(student(metric_rows=words, **fields))
    (sentence,) = check([now], max_accuracy_drop=1.0).sentences
    assert f"0.80 lost on {'2,000 examples' if words == 2000 else '30,000 words'}" in sentence
    assert "about 110,000 more examples would decide" in sentence
    worse = student(metric_rows=words, metric=0.888, metric_low=0.878, metric_high=0.898, metric_name="macro-f1")
    sentence = check_module.check([results(worse, name="new.jsonl")], baseline=now).sentences[0]
    assert "about 190,000 more examples would decide" in sentence  # (1.4286 * 2.02 / 0.3)**2 times as many


@pytest.mark.parametrize("name", ["max_accuracy_drop", "min_metric", "max_calibration_error", "max_truncated"])
def test_what_was_not_measured_is_undecided_and_never_passed(results: Results, name: str) -> None:
    for missing in (
        ("metric", "difference_points", "calibration_error"),
        ("metric_low", "difference_high", "calibration_error_low"),
    ):
        verdict = check([results(student(**dict.fromkeys(missing)))], **{name: 0.5})
        assert verdict.exit_code == 3 and "the model has no" in verdict.sentences[0]


def test_broken_wins_over_undecided(results: Results) -> None:
    path = results(student(speedup_low=4.0, speedup_high=6.0, difference_low=-9.0, difference_high=-5.0))
    verdict = check([path], min_speedup=5, max_accuracy_drop=1)
    assert [j.outcome for j in verdict.judgements] == ["broken", "undecided"] and verdict.exit_code == 1


@pytest.mark.parametrize("kind", ["control", "baseline", "competitor", "reference-model", "teacher"])
def test_only_models_are_judged_unless_something_else_is_named(results: Results, kind: str) -> None:
    other = line("other", kind=kind, runtime="onnxruntime", speedup_low=0.1, speedup_high=0.2)
    path = results(student(speedup_low=9.0, speedup_high=10.0), other)
    assert check([path], min_speedup=5).exit_code == 0
    assert check([path], min_speedup=5, model="other").exit_code == 1
    with pytest.raises(CompressError, match=rf"model is teacher \(teacher\), student, other \({kind}\)"):
        check([path], min_speedup=5, model="oth*")


def test_the_teacher_in_torch_is_judged_by_absolute_limits_only(results: Results) -> None:
    path = results(student())
    assert check([path], max_size="80MB", model="teacher").exit_code == 1
    with pytest.raises(CompressError, match="min_speedup is relative to the teacher in torch"):
        check([path], min_speedup=2, model="teacher")


def test_selectors_are_glob_patterns(results: Results) -> None:
    path = results(
        student(model="small-int8"),
        student(model="small"),
        student(model="large-int8", speedup_low=1.0),
        line("small", runtime="torch", speedup_low=0.5, speedup_high=0.6),
    )
    assert len(check([path], min_speedup=5, model="*-int8").judgements) == 2
    assert check([path], min_speedup=5, model="small*", runtime="onnx*").exit_code == 0
    assert check([path], min_speedup=5, model="small*").exit_code == 1


def test_a_name_that_looks_like_a_pattern_is_found_by_itself(results: Results) -> None:
    path = results(student(model="model[1]"), student(model="model1", speedup_high=1.0, speedup_low=0.9))
    assert check([path], min_speedup=5, model="model[1]").exit_code == 1  # both: as a name and as a pattern
    assert check([path], min_speedup=5, model="model[[]1]").exit_code == 0


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ({"model": "studnet"}, r"no line with model 'studnet' .*model is .*Did you mean 'student'"),
        ({"model": "student", "runtime": "torch"}, r"no line with runtime 'torch'.*runtime is onnxruntime\."),
        ({"device": "cuda"}, r"no line with device 'cuda'.*device is cpu\."),
        ({"data": "mnli*"}, r"no line with data 'mnli\*'.*data is dev.tsv\."),
        ({"threads": 8}, r"no line with threads 8.*threads is 1\."),
        ({"batch_size": 8}, r"no line with batch_size 8.*batch_size is 1, 32\."),
        ({"length": 128}, r"no line with length 128.*length is the data's own rows\."),
    ],
)
def test_a_selector_that_finds_nothing_is_the_users_mistake(
    results: Results, selector: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompressError, match=message):
        check([results(student(), student(batch_size=32))], min_speedup=5, **selector)


@pytest.mark.parametrize("selector", [{}, {"model": "student"}])
def test_a_newer_run_of_fewer_batch_sizes_hides_no_broken_limit(results: Results, selector: dict[str, str]) -> None:
    slow = student(batch_size=32, speedup_low=2.0, speedup_high=3.0, created="2026-11-20T12:00:00+00:00")
    newer = results(student(created="2026-11-21T12:00:00+00:00"), name="newer.jsonl")
    assert check([results(slow), newer], min_speedup=5, batch_size=32, **selector).exit_code == 1


def test_the_batch_size_is_the_smallest_unless_given(results: Results) -> None:
    path = results(student(), student(batch_size=32, speedup_low=2.0, speedup_high=3.0))
    assert check([path], min_speedup=5).exit_code == 0
    assert check([path], min_speedup=5, batch_size=32).exit_code == 1
    assert "at batch 32" in check([path], min_speedup=5, batch_size=32).sentences[0]


def test_fixed_lengths_are_judged_where_they_are_named(results: Results) -> None:
    path = results(student(), student(length=128, speedup_low=2.0, speedup_high=3.0))
    assert check([path], min_speedup=5).exit_code == 0 and check([path], min_speedup=5, length=128).exit_code == 1


def test_thread_counts_are_judged_each_and_named(results: Results) -> None:
    path = results(student(), student(threads=2, speedup_low=2.0, speedup_high=3.0))
    verdict = check([path], min_speedup=5)
    assert [j.subject for j in verdict.judgements] == [
        "student in onnxruntime, threads 1",
        "student in onnxruntime, threads 2",
    ]
    assert verdict.exit_code == 1 and check([path], min_speedup=5, threads=1).exit_code == 0


def test_quality_is_checked_once_per_model(results: Results) -> None:
    path = results(student(), student(threads=2))
    assert len(check([path], max_accuracy_drop=1, min_metric=0.5, max_size=10**9).judgements) == 3


@pytest.mark.parametrize(("limit", "shown"), [(1, "1 byte"), (7, "7 bytes"), (1200, "1.2 kB"), ("30MB", "30 MB")])
def test_a_limit_of_size_is_never_shown_as_nothing(results: Results, limit: str | int, shown: str) -> None:
    (sentence,) = check([results(student())], max_size=limit).sentences
    assert f": the size of at most {shown} " in sentence


def test_the_same_name_from_two_seeds_is_judged_twice(results: Results) -> None:
    one = student(training_seed=1, model_sha256="1" * 64)
    two = student(training_seed=2, model_sha256="2" * 64, difference_low=-9.0, difference_high=-8.0)
    verdict = check([results(one, two)], max_accuracy_drop=1)
    assert [(j.subject[-6:], j.outcome) for j in verdict.judgements] == [("seed 1", "holds"), ("seed 2", "broken")]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({}, "no limit is given"),
        ({"max_accuracy_drop": -1}, "max_accuracy_drop = -1 is not a number of percentage points"),
        ({"min_speedup": 0}, "min_speedup = 0 is not a ratio"),
        ({"min_speedup": float("nan")}, "min_speedup = nan"),
        ({"min_speedup": float("inf")}, "min_speedup = inf"),
        ({"max_size": 0}, "max_size = 0 is not a size"),
        ({"max_size": "30 parsecs"}, "max_size = '30 parsecs' is not a size"),
        ({"max_size": "9" * 400 + "MB"}, "is not a size"),
        ({"max_memory": "-3MB"}, "max_memory = '-3MB'"),
        ({"min_metric": 88}, "min_metric = 88 is not a metric as a fraction, such as 0.88"),
        ({"max_p95_ms": 1, "over_seeds": True}, "over_seeds is for max_accuracy_drop, not for max_p95_ms"),
    ],
)
def test_wrong_budgets_are_the_users_mistake(results: Results, budget: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        check([results(student())], **budget)


def test_nothing_to_judge_is_the_users_mistake(results: Results) -> None:
    with pytest.raises(
        CompressError, match=r"no compressed model to judge, but teacher \(teacher\): type --model NAME"
    ):
        check([results()], min_speedup=5)
    with pytest.raises(CompressError, match="no budget to check"):
        check_module.check([results(student())])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no results"),
        ("{not json", "line 1 is not valid JSON"),
        ('{\n  "results": []\n}\n', "is a lock or a report and holds no results; give the .jsonl"),
        ('{"a": 1}', "is not a result of compress benchmark; give the .jsonl file that its -o names$"),
        (json.dumps({**line("x").to_json(), "schema": 99}), "schema 99"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    with pytest.raises(CompressError, match=message):
        check([path], min_speedup=5)
    with pytest.raises(CompressError, match="does not exist"):
        check([tmp_path / "none.jsonl"], min_speedup=5)


@pytest.mark.parametrize(
    ("low", "high", "said"), [(-0.9, 0.1, "is within"), (-1.6, 0.6, "may be within"), (-3.0, -1.5, None)]
)
def test_a_baseline_within_the_budget_is_reported_first(
    results: Results, low: float, high: float, said: str | None
) -> None:
    baseline = line(
        "majority",
        kind="baseline",
        runtime="sklearn",
        difference_points=(low + high) / 2,
        difference_low=low,
        difference_high=high,
    )
    verdict = check([results(student(), baseline)], max_accuracy_drop=1)
    assert verdict.exit_code == 0 and len(verdict.judgements) == 1
    assert [note[: len(f"A baseline {said}")] for note in verdict.notes] == ([f"A baseline {said}"] if said else [])
    assert all("majority" in note and "on 2,000 examples (95% interval" in note for note in verdict.notes)
    assert all("the budget of 1 point of accuracy" in note for note in verdict.notes)
    other = student(data="other", data_sha256="0" * 64)
    budgets = [GateBudget(data="other", max_accuracy_drop=1), GateBudget(data="dev.tsv", max_accuracy_drop=0)]
    path = results(student(difference_low=0, difference_points=0.1, difference_high=0.2), baseline, other)
    judged = check_module.check([path], budgets)
    assert not any("the budget of 1 point" in note for note in judged.notes)  # that budget is of other data


def test_seeds_are_judged_by_their_mean(tmp_path: Path) -> None:
    """Losses of 0, 1 and 2 points: the mean of 1 is within 3 and beyond none; a single seed is never enough."""
    gold = [1] * 2000
    lines = [line("teacher", kind="teacher", gold=gold, predictions=predicted(1800), metric=0.9)]
    for seed, right in enumerate((1800, 1780, 1760)):
        lines.append(
            student(
                model=f"student-{seed}",
                recipe="student",
                training_seed=seed,
                model_sha256=str(seed) * 64,
                predictions=predicted(right),
                metric=right / 2000,
                difference_points=(right - 1800) / 20,
                difference_low=(right - 1800) / 20 - 0.5,
                difference_high=(right - 1800) / 20 + 0.5,
            )
        )
    path = write_lines(tmp_path / "seeds.jsonl", lines)
    verdict = check([path], max_accuracy_drop=5, over_seeds=True)
    assert [j.outcome for j in verdict.judgements] == ["holds"] and "1.00 lost on 3 seeds" in verdict.sentences[0]
    undecided = check([path], max_accuracy_drop=1, over_seeds=True)
    assert undecided.exit_code == 3 and "more training seeds would narrow it" in undecided.sentences[0]
    nothing = student(model="unmeasured", metric=None, difference_points=None)
    verdict = check([write_lines(tmp_path / "none.jsonl", [*lines, nothing])], max_accuracy_drop=5, over_seeds=True)
    assert [j.outcome for j in verdict.judgements] == ["holds", "undecided"] and "no metric" in verdict.sentences[1]
    with pytest.raises(CompressError, match="relative to the teacher in torch"):
        check([path], max_accuracy_drop=5, over_seeds=True, model="teacher")
    alone = write_lines(tmp_path / "one.jsonl", lines[:2])
    assert check([alone], max_accuracy_drop=50, over_seeds=True).exit_code == 3


def test_the_example_of_the_page_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "gate.md").read_text(encoding="utf-8")
    command, *shown = page.split("```console\n$ compress ")[1].split("```")[0].splitlines()
    monkeypatch.chdir(REPOSITORY)
    assert execute(command.split()) == 1
    assert capsys.readouterr().out.splitlines() == shown
