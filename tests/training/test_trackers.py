"""Trainings report to experiment trackers: what is reported, under which name, and that nothing else changes."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from compress.cli import COMMANDS, cli, execute
from compress.errors import CompressError
from compress.models.compute import TRACKERS, Compute
from compress.models.output_dir import work_title
from compress.recipes import Choice, Phase
from compress.requests.training import Run
from compress.studies.run import Study
from compress.training import trainer
from compress.training.trainer import DistillationTrainer
from tests.support.pruning import pruned
from tests.support.training_data import (
    BILSTM,
    TRAINING,
    distilled,
    finetuned,
    pool_file,
    state,
    stop_at,
    train_rows,
    validation_rows,
)

Runs = dict[str, dict[str, list[tuple[int, float]]]]  # run -> scalar -> its steps and values
with_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="no tensorboard")
ROWS: dict[str, Any] = {"train": train_rows(), "validation": validation_rows()}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    """What is reported; the current directory is that of the outputs."""
    found: Runs = {}

    class Recorder(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            self.scalars = found.setdefault(args.run_name, {})
            assert "ended" not in self.scalars

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            for name, value in logs.items():
                self.scalars.setdefault(name, []).append((state.global_step, value))

        def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            self.scalars["ended"] = []

    present = SimpleNamespace(origin="there")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: present if name in TRACKERS else find(name))
    for name in ("trackio", "mlflow"):
        monkeypatch.setitem(trainer.INTEGRATION_TO_CALLBACK, name, Recorder)
    monkeypatch.chdir(tmp_path)
    return found


def test_every_phase_is_a_run_with_loss_terms_and_scores(teacher: Path, tmp_path: Path, runs: Runs) -> None:
    phases = (Phase((Choice("logit-mse"),), name="first"), Phase((Choice("kl"), Choice("hard-label"))))
    recipe = replace(BILSTM, phases=phases, training=replace(TRAINING, max_steps=8))
    pool = pool_file(tmp_path / "pool.txt")
    made = [
        distilled(teacher, recipe, tmp_path / "made" / name, unlabeled=pool, **ROWS, report_to=tracker)
        for name, tracker in (("quiet", None), ("reported", "trackio"))
    ]
    assert runs.keys() == {"made/reported-phase-1-first", "made/reported-phase-2"}
    first, second = runs.values()
    assert [step for step, _ in first["loss"]] == [1, 2, 3, 4] and "eval_score" not in first
    assert second.keys() >= {"loss/kl", "loss/hard-label", "learning_rate", "rows_per_second", "ended"}
    best = max(value for _, value in second["eval_score"])
    assert best == pytest.approx(made[1].manifest.metrics[0]["value"])
    quiet, reported = (state(one.path) for one in made)
    assert all(torch.equal(quiet[key], reported[key]) for key in quiet)
    assert made[0].manifest.files.keys() == made[1].manifest.files.keys()
    assert made[0].manifest.recipe == made[1].manifest.recipe


def stop_and_report(teacher: Path, output: Path, monkeypatch: pytest.MonkeyPatch, tracker: str) -> None:
    """Train for four steps of five, with a checkpoint after three."""
    with monkeypatch.context() as patch:
        stop_at(4, patch, DistillationTrainer, "compute_loss")
        with pytest.raises(KeyboardInterrupt):
            finetuned(teacher, output, training=TRAINING, **ROWS, report_to=tracker)


def test_a_resumed_training_may_report_elsewhere(
    teacher: Path, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_and_report(teacher, tmp_path / "made", monkeypatch, "trackio")
    stopped = runs.pop("made-phase-1")
    assert "ended" in stopped and [step for step, _ in stopped["loss"]] == [1, 2, 3, 4]
    made = finetuned(teacher, tmp_path / "made", training=TRAINING, **ROWS, report_to="mlflow")
    again = runs["made-phase-1"]
    assert [step for step, _ in again["loss"]] == [4, 5] and made.manifest.notes["steps"] == 5
    assert "loss_hard-label" in again and not any("/" in name for name in again)


def test_masking_and_recovery_of_a_pruned_model_are_runs(teacher: Path, tmp_path: Path, runs: Runs) -> None:
    made = pruned(teacher, tmp_path / "small", schedule="cubic", recover=2.0, training=TRAINING, report_to="trackio")
    assert runs.keys() == {"small-masking-phase-1", "small-phase-1"}
    lines = (made.path / "metrics.jsonl").read_text().splitlines()
    assert {line.partition(",")[0] for line in lines} == {'{"phase": "masking"', '{"phase": "recovery"'}


def test_only_commands_that_train_report() -> None:
    reporting = {
        name
        for name in COMMANDS
        if any(parameter.name == "report_to" for parameter in cli.get_command(None, name).params)  # type: ignore[arg-type, union-attr]
    }
    assert reporting == {"finetune", "pretrain", "distill", "prune", "run"}


def test_a_study_hands_its_tracker_to_its_stages(runs: Runs) -> None:
    recipe: Any = SimpleNamespace(benchmark=SimpleNamespace(metric="accuracy"))
    stages: Any = None
    study = Study(Run("s", "out"), recipe, stages, Compute(report_to="wandb"))
    vars(study)["rows"] = SimpleNamespace(train=[], validation=[])  # which it would read
    found = study.trained(7)
    assert (found["seed"], found["report_to"]) == (7, "wandb")


def test_a_missing_package_is_one_sentence_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # where wandb keeps its runs
    monkeypatch.syspath_prepend(tmp_path)
    command = ["run", "no-such-study", "-o", str(tmp_path / "out")]
    for name in TRACKERS:
        if (found := importlib.util.find_spec(name)) is None or found.origin is None:
            assert execute([*command, "--report-to", name]) == 2
            assert f"--report-to {name} needs the package {name}; install it with pip install {name}" in (
                capsys.readouterr().err
            )
    assert execute([*command, "--report-to", "excel"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in TRACKERS) and not (tmp_path / "out").exists()
    with pytest.raises(CompressError, match="excel is not known; use one of trackio, tensorboard, mlflow, wandb"):
        Compute(report_to="excel")


@pytest.mark.parametrize(
    ("place", "title"),
    [
        (".student.partial/.work/phase-1", "student-phase-1"),
        ("models/.pruned.partial/.work/masking/.work/phase-1", "models/pruned-masking-phase-1"),
        ("../elsewhere/.student.partial/.work/phase-2-mlm", "student-phase-2-mlm"),
        ("checkpoints", "checkpoints"),
    ],
)
def test_a_run_is_named_after_output_and_phase(place: str, title: str) -> None:
    assert work_title(Path(place)) == title


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars that TensorBoard shows of a run: their steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@with_tensorboard
def test_event_files_of_tensorboard(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("runs", "elsewhere"):
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", place)
        for _ in range(2):  # what is trained again replaces the curve of before
            made = finetuned(teacher, tmp_path / "made", training=TRAINING, **ROWS, report_to="tensorboard", force=True)
        scalars = events(tmp_path / place / "made-phase-1")
        assert [step for step, _ in scalars["train/loss"]] == [1, 2, 3, 4, 5]
        assert max(value for _, value in scalars["eval/score"]) == pytest.approx(made.manifest.metrics[0]["value"])
        assert "train/loss/hard-label" in scalars


@with_tensorboard
def test_event_files_of_a_resumed_training_hold_every_step(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stop_and_report(teacher, tmp_path / "made", monkeypatch, "tensorboard")
    finetuned(teacher, tmp_path / "made", training=TRAINING, **ROWS, report_to="tensorboard")
    scalars = events(tmp_path / "runs" / "made-phase-1")
    assert [step for step, _ in scalars["train/loss"]] == [1, 2, 3, 4, 5]
    assert [step for step, _ in scalars["eval/score"]] == [3, 5]
