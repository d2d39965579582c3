"""The rows of a study: controls they share, budgets, choosing some of them, and one that fails. Stages are stubs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress import recipes
from compress.cli import execute
from compress.errors import CompressError, PartlyMade
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import Manifest
from compress.models.model_dir import Model
from compress.models.output_dir import finish
from compress.recipes import Choice, Phase, StudyRecipe, Vocabulary, resolved
from compress.recipes.student import control_key
from compress.requests.compression import Prune
from compress.requests.training import Distill, run
from compress.studies import plan
from compress.studies import run as run_module
from tests.support.results import line, write_lines
from tests.support.tiny import classifier, write
from tests.support.training_data import (
    STUDY_HEAD,
    TINY_STUDENT,
    write_study_data,
)

STUDY = (
    """
title = "Rows"
description = "of a tiny study"
[budgets.small]
training = { max_steps = 3, batch_size = 16 }
rows = 20
[budgets.paper]
"""
    + STUDY_HEAD
    + """
[[students]]
recipe = "FOLDER/first.toml"
quantize = false
[[students]]
recipe = "FOLDER/second.toml"
quantize = false
training = { max_steps = 4 }
[[students]]
recipe = "FOLDER/third.toml"
quantize = false
seeds = [0, 5]
[[prune]]
heads = "50%"
quantize = false
[benchmark]
batch_sizes = [1]
rounds = 3
together = 2
"""
)


RECIPE = "pkd-half"  # one that the survey has


class Case:
    """A study whose students do not learn: stages write an empty model directory, or fail when they are told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.out, self.recipe = folder, folder / "study", folder / "rows.toml"
        self.trained: list[tuple[str, str, dict[str, Any]]] = []
        self.measured: list[dict[str, Any]] = []
        self.failing: dict[str, Exception] = {}
        write_study_data(folder / "data", folder / "models")
        self.teacher = folder / "models" / "tiny-bert"
        for name, loss in (("first", "logit-mse"), ("second", "kl"), ("third", "kl")):
            (folder / f"{name}.toml").write_text(TINY_STUDENT.replace("logit-mse", loss))
        self.recipe.write_text(STUDY.replace("FOLDER", str(folder)))
        monkeypatch.setattr("compress.training.distill.distill", self._distill)
        monkeypatch.setattr("compress.pruning.prune.prune", self._prune)
        monkeypatch.setattr(run_module, "benchmark", self._benchmark)
        monkeypatch.setattr(
            "compress.reporting.report.report", lambda request: Path(request.output).mkdir(exist_ok=True)
        )

    def _write(self, output: Path, **fields: Any) -> None:
        if output.name in self.failing:
            raise self.failing[output.name]
        write(output, classifier("bert", seed=len(self.trained)))
        model = Model.open(output)
        finish(output, Manifest(stage="distill", name=output.name, task=model.task, labels=model.labels, **fields))

    def _distill(self, request: Distill) -> None:
        output, control, recipe = Path(request.output or ""), request.control, resolved(request.student)
        self.trained.append((output.name, "control" if control else "student", recipe))
        self._write(output, recipe=recipe, seeds={"seed": request.seed}, notes={"control": control})

    def _prune(self, request: Prune) -> None:
        output = Path(request.output or "")
        self.trained.append((output.name, "pruned", {"training": resolved(request.training)}))
        self._write(output)

    def _benchmark(
        self, teacher: Model, models: list[Model], data: Any, settings: Any, *, output: Any, **named: Any
    ) -> None:
        self.measured.append({"models": [model.name for model in models], **vars(settings), **vars(output), **named})
        lines = [line("tiny-bert", kind="teacher"), *(line(model.name, recipe=RECIPE) for model in models[:1])]
        write_lines(output.path, lines)

    def run(self, **options: Any) -> Path:
        asked = {"data_root": self.folder / "data", "model_root": self.folder / "models", "device": "cpu", **options}
        return run(str(self.recipe), self.out, **asked)

    def names(self) -> list[str]:
        return [name for name, _, _ in self.trained]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


# What is said


def test_the_first_message_says_what_will_be_made_and_how_long_it_takes(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    text = case.recipe.read_text().replace('title = "Rows"', 'title = "Rows?"\nduration = "a second on two cores"')
    case.recipe.write_text(text)
    caplog.set_level("INFO", "compress")
    case.run()
    assert caplog.messages[0] == (
        "Rows?\nTo be made: teacher (tiny-bert), first, first-control, second, second-control, third, third-seed-5, "
        "third-seed-5-control, pruned-50. All of them are then measured against the teacher, and a report is written. "
        "It takes a second on two cores."
    )
    assert "third-seed-5: done in 0 s" in caplog.messages
    caplog.clear()
    case.run(only=["pruned-50"])
    assert (
        "made: teacher (tiny-bert), pruned-50. They, and what was made here before, are then measured"
        in caplog.messages[0]
    )


def test_a_given_teacher_is_not_said_to_be_made(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "compress")
    case.run(teacher=case.teacher, only=["pruned-50"])
    assert "\nTo be made: pruned-50. They, and what was made here before, are then measured " in caplog.messages[0]
    assert f" measured against the teacher {case.teacher}, and" in caplog.messages[0]
    assert "results.jsonl: made again, from other models or settings than before" not in caplog.messages
    case.run(teacher=case.teacher, only=["first"])
    assert "results.jsonl: made again, from other models or settings than before" in caplog.messages


def test_a_study_of_a_given_teacher_makes_no_other_one(case: Case) -> None:
    case.recipe.write_text(case.recipe.read_text().replace('model = "tiny-bert"', 'recipe = "minilm-l6"'))
    case.run(teacher=case.teacher, only=["pruned-50"])
    with pytest.raises(CompressError, match="was begun with another teacher, --teacher DIR: give it again"):
        case.run(only=["pruned-50"])
    assert not (case.out / "teacher").exists() and "teacher" not in json.loads((case.out / "study.json").read_text())


# Controls


def test_students_that_differ_in_phases_only_share_a_control(case: Case) -> None:
    case.run()
    assert case.names() == [
        "first",
        "first-control",
        "second",
        "second-control",
        "third",
        "third-seed-5",
        "third-seed-5-control",
        "pruned-50",
    ]
    (measured,) = case.measured
    assert measured["models"] == case.names()  # each once


def test_a_change_of_phases_keeps_the_shared_control(case: Case) -> None:
    case.run()
    for name in ("first", "third"):
        (case.folder / f"{name}.toml").write_text(TINY_STUDENT.replace('"logit-mse"', '"kl", temperature = 3.0'))
    case.trained.clear()
    case.run(force=True)
    assert case.names() == ["first", "third", "third-seed-5"]


def test_a_control_is_made_again_for_another_student_of_its_name(case: Case) -> None:
    case.run(only=["third"])
    assert case.names() == ["third", "first-control", "third-seed-5", "third-seed-5-control"]


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": Choice("bilstm", options={"hidden_size": 5})},
        {"vocabulary": Vocabulary(500)},
        {"training": replace(recipes.Training(), learning_rate=1.0)},
    ],
    ids=["architecture", "vocabulary", "training"],
)
def test_what_decides_a_control(changes: dict[str, Any]) -> None:
    student = recipes.StudentRecipe("s", Choice("bilstm"), (Phase((Choice("kl"),)),))
    key = control_key(resolved(student), 0)
    assert control_key(resolved(replace(student, **changes)), 0) != key
    assert control_key(resolved(student), 1) != key
    other = replace(student, phases=(Phase((Choice("logit-mse"),), text="pool"),), paper="another", name="other")
    assert control_key(resolved(other), 0) == key
    assert control_key(json.loads(json.dumps(resolved(other))), 0) == key  # as a manifest holds it
    assert control_key({"name": "minilm-l6", "hub": "x"}, 0) == ""


# Budgets


def test_the_first_budget_is_the_default_and_a_plan_overrides_it(case: Case) -> None:
    case.run()
    trainings = {name: recipe["training"] for name, _, recipe in case.trained}
    assert {name: (t["max_steps"], t["batch_size"]) for name, t in trainings.items()} == {
        "first": (3, 16),
        "first-control": (3, 16),
        "second": (4, 16),
        "second-control": (4, 16),
        "third": (3, 16),
        "third-seed-5": (3, 16),
        "third-seed-5-control": (3, 16),
        "pruned-50": (3, 16),
    }
    assert LabelDir.open(case.out / "labels").rows == 20 + 40
    assert case.measured[0]["budget"] == "small" and case.measured[0]["together"] == 2
    assert case.measured[0]["command"] == "compress run rows.toml --budget small"


def test_another_budget_is_asked_for_by_name(case: Case) -> None:
    case.run(budget="paper", only=["first"])
    assert [recipe["training"]["max_steps"] for _, _, recipe in case.trained] == [0, 0]
    assert LabelDir.open(case.out / "labels").rows == 60 + 40
    assert case.measured[0]["command"] == "compress run rows.toml --budget paper --only first"


def test_a_study_is_shown_by_its_stages(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.failing["first-control"] = CompressError("no")
    with pytest.raises(PartlyMade):
        case.run(only=["first", "pruned-50"])
    capsys.readouterr()
    assert execute(["show", str(case.out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "labels: made in 0 s",
        "first: made in 0 s",
        "first-control: begun",
        "pruned-50: made in 0 s",
        "results.jsonl: made in 0 s",
        "report: made in 0 s",
    ]


def test_one_directory_holds_one_budget(case: Case) -> None:
    case.run(only=["first"])
    case.recipe.write_text(
        case.recipe.read_text().replace(
            "[budgets.paper]", "[budgets.same]\nrows = 20\ntraining = { max_steps = 3, batch_size = 16 }"
        )
    )
    with pytest.raises(
        CompressError,
        match=r"first was made from other data or .* \(changed: budget\); make it again",
    ):
        case.run(budget="same", only=["first"])


def test_a_budget_that_is_not_there(case: Case) -> None:
    with pytest.raises(CompressError, match="rows has no budget 'smal'; it has small, paper. Did you mean 'small'?"):
        case.run(budget="smal")
    case.recipe.write_text(
        case.recipe.read_text()
        .replace("[budgets.paper]", "")
        .replace("[budgets.small]\n", "")
        .replace("training = { max_steps = 3, batch_size = 16 }\nrows = 20\n", "")
    )
    with pytest.raises(CompressError, match="rows has no budgets, so that --budget small would change nothing"):
        case.run(budget="small")
    assert case.trained == [] and not case.out.exists()


def test_a_study_without_budgets_is_as_it_was() -> None:
    study = recipes.load_recipe("benchmarks", "quickstart")
    assert isinstance(study, StudyRecipe) and study.budgets == {}
    assert plan.choose_budget(study) == "" and plan.within_budget(study, "") is study


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("training = { max_step = 3 }", "budgets.small: training has 1 fault: unknown key max_step"),
        ("teacher = { epochs = 0.0 }", "budgets.small: teacher has 1 fault: epochs = 0.0 must be above 0"),
        ("rows = -1", "budgets.small: rows = -1 must be at least 0"),
        ("steps = 3", "unknown key budgets.small.steps"),
    ],
)
def test_the_faults_of_a_budget(new: str, message: str, case: Case) -> None:
    text = case.recipe.read_text().replace("training = { max_steps = 3, batch_size = 16 }\nrows = 20", new)
    case.recipe.write_text(text)
    with pytest.raises(CompressError, match=message):
        case.run()


# Some rows, and rows that fail


def test_only_some_rows_and_then_the_others(case: Case) -> None:
    case.run(only=["second", "pruned-50"])
    assert case.measured[-1]["models"] == ["second", "second-control", "pruned-50"]
    case.trained.clear()
    case.run(only=["first"])
    assert case.names() == ["first", "first-control"]  # the others, which were made before, are measured with them
    assert case.measured[-1]["models"] == ["first", "first-control", "second", "second-control", "pruned-50"]
    assert case.measured[-1]["command"].endswith(" --only first --only second --only pruned-50")
    case.run()
    assert case.names()[2:] == ["third", "third-seed-5", "third-seed-5-control"]
    assert len(case.measured[-1]["models"]) == 8  # what gathers the others is made again without being forced
    with pytest.raises(CompressError, match="--only secnd is not in rows; it has first, .*. Did you mean 'sec"):
        case.run(only=["secnd"])


@pytest.mark.parametrize("error", [CompressError("it has no heads"), RuntimeError("out of memory"), MemoryError()])
def test_a_row_that_fails_does_not_lose_the_others(error: Exception, case: Case) -> None:
    case.failing["second"] = error
    with pytest.raises(PartlyMade, match=r"failed: second \((it has no heads|out of memory|MemoryError)\); the others"):
        case.run()
    assert "second" not in case.measured[-1]["models"] and "pruned-50" in case.measured[-1]["models"]
    assert (case.out / "report").is_dir()
    case.failing.clear()
    case.trained.clear()
    case.run()
    assert case.names() == ["second", "second-control"] and "second" in case.measured[-1]["models"]


def test_what_a_row_made_before_it_failed_is_kept(case: Case) -> None:
    case.failing["third-seed-5"] = CompressError("no")
    with pytest.raises(PartlyMade, match="third"):
        case.run()
    assert "third" in case.measured[-1]["models"]


def test_when_every_row_fails_nothing_is_measured(case: Case) -> None:
    case.failing["second"] = CompressError("it has no heads")
    with pytest.raises(CompressError, match=r"second \(it has no heads\); nothing was measured"):
        case.run(only=["second"])
    assert case.measured == [] and not (case.out / "report").exists()


def test_a_full_disk_ends_the_study_at_once(case: Case) -> None:
    case.failing["first"] = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        case.run()
    assert case.names() == ["first"]


def test_the_command_prints_the_report_and_then_what_failed(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(request: Any) -> None:
        path = Path(request.output)
        path.mkdir()
        (path / "report.md").write_text("the table\n")

    monkeypatch.setattr("compress.reporting.report.report", report)
    case.failing["second"] = CompressError("it has no heads")
    words = [
        "run",
        str(case.recipe),
        "--data-root",
        str(case.folder / "data"),
        "--model-root",
        str(case.folder / "models"),
        "-o",
        str(case.out),
        "--device",
        "cpu",
    ]
    assert execute([*words, "--only", "first", "--only", "second"]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("the table\n") and "second (it has no heads)" in captured.err
    assert captured.out.index("the table") < captured.out.index("Report: ")
