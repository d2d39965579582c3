"""Older results: files, folders with a file for each host, other git references; and how they are renewed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.gating import check
from compress.gating.reference import read_reference, store_reference
from tests.support.gating import Results, predicted, results, student
from tests.support.results import line, write_lines

__all__ = ["results"]


def outcomes(verdict: check.GateVerdict) -> dict[str, str]:
    return {judgement.gate: judgement.outcome for judgement in verdict.judgements}


def test_an_unchanged_model_holds_its_baseline(results: Results) -> None:
    now = results(student(predictions=predicted(1800)))
    verdict = check.check([now], baseline=now)
    assert verdict.exit_code == 0 and outcomes(verdict) == {"baseline_drop": "holds", "baseline_speed": "holds"}


def test_kept_predictions_are_compared_row_by_row(results: Results) -> None:
    """60 rows fewer of 2,000: 3 points, certain when paired; two separate intervals of 5 points cannot tell."""
    wide = {"metric_low": 0.85, "metric_high": 0.95}
    old = results(student(metric=0.90, predictions=predicted(1800), **wide), name="old.jsonl")
    now = student(metric=0.87, predictions=predicted(1740), **wide)
    verdict = check.check([results(now)], baseline=old)
    assert outcomes(verdict)["baseline_drop"] == "broken" and "3.00 lost on 2,000 examples" in verdict.sentences[0]
    unpaired = replace(now, predictions=[])
    assert outcomes(check.check([results(unpaired)], baseline=old))["baseline_drop"] == "undecided"


def test_predictions_are_those_of_the_compared_run(results: Results) -> None:
    early = student(created="2026-01-01T00:00:00+00:00", predictions=predicted(1000), metric=0.5)
    late = student(created="2026-02-01T00:00:00+00:00", predictions=predicted(1800), metric=0.9)
    old = results(early, late, name="old.jsonl")
    change = check.check([results(student(metric=0.9, predictions=predicted(1800)))], baseline=old).changes[0]
    assert change.points is not None and change.points[0] == 0.0


def test_rows_are_not_paired_where_labels_have_another_order(results: Results) -> None:
    """The second teacher counts its labels the other way round: predictions of 1 are not the same."""
    swapped = {"labels": ["positive", "negative"], "predictions": [1 - one for one in predicted(1800)]}
    old = results(student(predictions=predicted(1800)), name="old.jsonl")
    change = check.check([results(student(**swapped))], baseline=old).changes[0]
    assert change.points is not None and change.points[0] == 0.0


@pytest.mark.parametrize(("speedup", "outcome"), [(10.0, "holds"), (7.0, "broken"), (9.0, "undecided")])
def test_a_slower_model_breaks_its_baseline(results: Results, speedup: float, outcome: str) -> None:
    old = results(student(speedup=10.0, speedup_low=9.8, speedup_high=10.2), name="old.jsonl")
    now = student(speedup=speedup, speedup_low=speedup * 0.98, speedup_high=speedup * 1.02)
    verdict = check.check([results(now)], baseline=old)
    assert outcomes(verdict)["baseline_speed"] == outcome
    assert "now, ×10.0 then" in verdict.sentences[1] and f"{speedup / 10:.0%} over 3 rounds" in verdict.sentences[1]


@pytest.mark.parametrize("then", [{"schema": 2}, {"schema": 4}, {"clock": "cpu"}], ids=str)
def test_a_speed_measured_by_another_method_is_noted_and_not_judged(results: Results, then: dict[str, Any]) -> None:
    old = results(
        student(**{"clock": "wall", "speedup_low": 50.0, "speedup": 55.0, "speedup_high": 60.0} | then),
        name="old.jsonl",
    )
    verdict = check.check([results(student(clock="wall"))], baseline=old)
    assert list(outcomes(verdict)) == ["baseline_drop"] and "by another method" in verdict.notes[0]


def test_a_speedup_over_a_teacher_of_another_shape_is_noted_and_not_judged(tmp_path: Path) -> None:
    early, late = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
    one, other = (line("teacher", kind="teacher", shape={"layers": layers}, created=late) for layers in (6, 12))
    now = write_lines(tmp_path / "now.jsonl", [one, student(created=late)])
    old = write_lines(tmp_path / "old.jsonl", [replace(one, created=early), other, student(created=late)])
    verdict = check.check([now], baseline=old)
    assert list(outcomes(verdict)) == ["baseline_drop"] and "over a teacher of another shape" in verdict.notes[0]
    # The teacher that counts is that of the run, whatever else the file holds.
    old = write_lines(tmp_path / "old.jsonl", [replace(other, created=early), one, student(created=late)])
    assert outcomes(check.check([now], baseline=old))["baseline_speed"] == "holds"
    # Weights decide no speed: a study that trains its teacher anew is compared.
    again = replace(one, model_sha256="e" * 64, created=early)
    old = write_lines(tmp_path / "old.jsonl", [again, student(created=early)])
    assert outcomes(check.check([now], baseline=old))["baseline_speed"] == "holds"


def test_tolerances_are_the_callers(results: Results) -> None:
    old = results(student(speedup=10.0, speedup_low=9.8, speedup_high=10.2), name="old.jsonl")
    now = results(student(speedup=7.0, speedup_low=6.9, speedup_high=7.1, metric_low=0.894, metric_high=0.896))
    judged = check.check([now], baseline=old, tolerances=[check.Tolerance(max_slowdown=0.5, max_drop=5)])
    assert judged.exit_code == 0
    with pytest.raises(CompressError, match="max_slowdown = 1.0 is not a share"):
        check.check([now], baseline=old, tolerances=[check.Tolerance(max_slowdown=1)])


@pytest.mark.parametrize("strict_first", [False, True])
def test_each_of_several_tolerances_is_judged(results: Results, strict_first: bool) -> None:
    old = results(student(metric=0.92, metric_low=0.919, metric_high=0.921), name="old.jsonl")
    now = results(student(metric=0.90, metric_low=0.899, metric_high=0.901))
    tolerances = [check.Tolerance(max_drop=0.1), check.Tolerance(max_drop=10)]
    judged = check.check([now], baseline=old, tolerances=tolerances if strict_first else tolerances[::-1])
    drops = {one.limit: one.outcome for one in judged.judgements if one.gate == "baseline_drop"}
    assert drops == {0.1: "broken", 10: "holds"} and judged.exit_code == 1


def test_a_line_that_two_patterns_select_is_told_once(results: Results) -> None:
    now = results(student(predictions=predicted(1800)))
    budgets = [check.GateBudget(model=model, min_speedup=1) for model in ("student", "s*")]
    tolerances = [check.Tolerance(model=model) for model in ("student", "s*")]
    found = check.check([now], budgets, baseline=now, tolerances=tolerances)
    once = check.check([now], budgets[:1], baseline=now, tolerances=tolerances[:1])
    assert found == once and len(found.judgements) == 3 and len(found.changes) == 1


def test_quality_is_compared_across_hosts_and_speed_is_not(results: Results) -> None:
    old = results(student(host_id="other", speedup=99.0, speedup_low=98.0, speedup_high=100.0), name="old.jsonl")
    verdict = check.check([results(student())], baseline=old)
    assert list(outcomes(verdict)) == ["baseline_drop"]
    assert "no speed measured on this host (abc123)" in verdict.notes[0]


@pytest.mark.parametrize("setting", [{"threads": 2}, {"batch_size": 8}, {"length": 64}, {"padding": "max_length"}])
def test_speed_is_compared_with_the_same_settings_only(results: Results, setting: dict[str, Any]) -> None:
    old = results(student(**setting), name="old.jsonl")
    verdict = check.check([results(student())], baseline=old)
    assert list(outcomes(verdict)) == ["baseline_drop"] and "with these settings" in verdict.notes[0]


def test_the_newest_of_older_results_counts(results: Results) -> None:
    early = student(created="2026-01-01T00:00:00+00:00", speedup=50.0, speedup_low=49.0, speedup_high=51.0)
    old = results(early, student(model_sha256="9" * 64), name="old.jsonl")
    assert outcomes(check.check([results(student())], baseline=old))["baseline_speed"] == "holds"


def test_other_data_cannot_be_compared_and_are_not_passed_over(results: Results) -> None:
    old = results(student(data_sha256="0" * 64), name="old.jsonl")
    verdict = check.check([results(student())], baseline=old)
    assert verdict.exit_code == 3 and "on other data than dev.tsv (2,000 examples)" in verdict.sentences[0]


def test_models_that_came_and_went_are_noted(results: Results) -> None:
    old = results(student(), student(model="gone"), student(model="gone", batch_size=32), name="old.jsonl")
    verdict = check.check([results(student(), student(model="new"))], baseline=old)
    (gone,) = [change.then for change in verdict.changes if change.then and not change.now]
    assert gone.batch_size == 1  # as of the models beside it
    assert any("new in onnxruntime is not in" in note for note in verdict.notes)
    assert any("gone in onnxruntime is in" in note for note in verdict.notes)
    known = {change.subject: (change.then is not None, change.now is not None) for change in verdict.changes}
    assert known == {
        "student in onnxruntime": (True, True),
        "new in onnxruntime": (False, True),
        "gone in onnxruntime": (True, False),
    }


def test_a_baseline_of_other_models_is_the_users_mistake(results: Results) -> None:
    with pytest.raises(CompressError, match="has none of the models"):
        check.check([results(student())], baseline=results(line("else"), name="old.jsonl"))


def beside_their_teacher(*lines: Measurement) -> list[Measurement]:
    return [line("teacher", kind="teacher", host_id=lines[0].host_id), *lines]


def folder_of(path: Path, *hosts: str, **fields: Any) -> Path:
    path.mkdir(exist_ok=True)
    for host in hosts:
        write_lines(path / f"{host}.jsonl", beside_their_teacher(student(host_id=host, **fields)))
    return path


def test_a_folder_is_read_by_host(results: Results, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "baselines", "abc123")
    (folder / "other.jsonl").write_text("not read, because this host has a file of its own")
    (folder / "README.md").write_text("about these files")
    verdict = check.check([results(student())], baseline=folder)
    assert outcomes(verdict) == {"baseline_drop": "undecided", "baseline_speed": "holds"} and not verdict.notes


def test_quality_is_compared_with_reference_results_of_any_host(results: Results, tmp_path: Path) -> None:
    verdict = check.check([results(student())], baseline=folder_of(tmp_path / "baselines", "first", "second"))
    assert list(outcomes(verdict)) == ["baseline_drop"] and "on this host (abc123)" in verdict.notes[0]


def test_folders_that_are_no_baseline(results: Results, tmp_path: Path) -> None:
    now = results(student())
    (tmp_path / "empty").mkdir()
    with pytest.raises(CompressError, match="holds no baseline; make one with .*--update-baseline"):
        check.check([now], baseline=tmp_path / "empty")
    with pytest.raises(CompressError, match="none does not exist"):
        check.check([now], baseline=tmp_path / "none")
    write_lines(folder_of(tmp_path / "renamed") / "abc123.jsonl", [student(host_id="somebody")])
    with pytest.raises(CompressError, match=r"abc123.jsonl holds lines of another host \(somebody\)"):
        check.check([now], baseline=tmp_path / "renamed")


def test_results_become_the_baseline_of_their_hosts(results: Results, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "baselines"
    now = write_lines(tmp_path / "two.jsonl", [student(), student(host_id="second")])
    assert [path.name for path in store_reference([now], folder)] == ["abc123.jsonl", "second.jsonl"]
    assert [json.loads(text)["host_id"] for text in (folder / "second.jsonl").read_text().splitlines()] == ["second"]
    assert [*store_reference([results(student(model="later"))], folder).values()] == [["student"]]
    assert "later" in (folder / "abc123.jsonl").read_text() and "later" not in (folder / "second.jsonl").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["abc123.jsonl", "second.jsonl"]
    assert check.check([results(student(model="later"))], baseline=folder).exit_code in (0, 3)
    both = [student(model="later", data=name, data_sha256=name * 64) for name in "ab"]
    store_reference([write_lines(tmp_path / "sets.jsonl", both)], folder)
    assert [*store_reference([results(both[0])], folder).values()] == [["later on b"]]


@pytest.mark.parametrize("host", ["../escape", "a/b", "", ".", "x" * 65])
def test_a_host_that_cannot_name_a_file_is_refused(tmp_path: Path, host: str) -> None:
    now = write_lines(tmp_path / "now.jsonl", [student(host_id=host)])
    with pytest.raises(CompressError, match="cannot name a file"):
        store_reference([now], tmp_path / "baselines")
    assert not (tmp_path / "baselines").exists()


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose branch main has a baseline that its working tree has not."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init")
    folder_of(folder / "baselines", "abc123", predictions=predicted(1800))
    write_lines(folder / "one file.jsonl", beside_their_teacher(student(predictions=predicted(1800))))
    (folder / "binary").write_bytes(b"\xff\xfe")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "Baseline")
    git(folder, "checkout", "-b", "change")
    git(folder, "rm", "-r", "baselines", "one file.jsonl")
    git(folder, "commit", "-m", "Without it")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("path", ["baselines", "baselines/", "baselines/abc123.jsonl", "one file.jsonl", "./baselines"])
def test_results_are_compared_with_another_branch(results: Results, repository: Path, path: str) -> None:
    now = results(student(predictions=predicted(1700), metric=0.85))
    verdict = check.check([now], against=f"main:{path}")
    assert outcomes(verdict) == {"baseline_drop": "broken", "baseline_speed": "holds"}
    (change,) = verdict.changes
    assert change.points is not None and change.points[0] == pytest.approx(-5.0)
    assert verdict.older == f"main:{path}" and not (repository / "baselines").exists()


def test_paths_below_a_folder_of_the_repository(
    results: Results, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "deep").mkdir()
    monkeypatch.chdir(repository / "deep")
    assert check.check([results(student())], against="main:baselines").changes
    assert check.check([results(student())], against="main:../baselines").changes


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("main", "is not REF:PATH"),
        (":baselines", "is not REF:PATH"),
        ("main:", "is not REF:PATH"),
        ("--output=x:y", "is not REF:PATH"),
        ("mian:baselines", "has no reference 'mian'; fetch it first"),
        ("main..change:baselines", "has no reference"),
        ("main:nowhere", "main has no 'nowhere'; paths count from the top"),
        ("change:baselines", "change has no 'baselines'"),
        ("main:binary", "cannot be read as results"),
    ],
)
def test_what_git_does_not_have_is_the_users_mistake(
    results: Results, repository: Path, spec: str, message: str
) -> None:
    with pytest.raises(CompressError, match=message):
        check.check([results(student())], against=spec)


def test_outside_a_repository_and_without_git(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = results(student())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(CompressError, match="needs a git repository here.*not a git repository"):
        check.check([now], against="main:baselines")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompressError, match="needs git, and it is not installed"):
        check.check([now], against="main:baselines")


def test_one_kind_of_older_results_at_a_time(results: Results) -> None:
    now = results(student())
    with pytest.raises(CompressError, match="give one of them"):
        check.check([now], baseline=now, against="main:x")


def test_a_baseline_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="nowhere does not exist; make it with .* --update-baseline"):
        read_reference(tmp_path / "nowhere", ["abc123"])
