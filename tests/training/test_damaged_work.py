"""A damaged file of unfinished work costs its part of the work, and no start fails because of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from compress.errors import CompressError
from compress.labelling.label_dir import LabelDir
from compress.recipes import Choice, Phase
from compress.training.trainer import DistillationTrainer
from tests.support.training_data import TRANSFORMER, stop_at
from tests.training.test_phases import in_phases, state, taught

PHASES = Phase((Choice("first-cosine"),), name="inside"), Phase((Choice("kl"), Choice("first-cosine")))
RECIPE = in_phases(*PHASES, recipe=TRANSFORMER, epochs=6.0, evaluations=4)
STOPPED_AT = 14  # steps of the second phase, of which checkpoints lie there


@pytest.fixture(scope="module")
def work(teacher: Path, labels: LabelDir, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A training that was stopped in its second phase, as a folder to copy, and the weights of one that was not."""
    folder = tmp_path_factory.mktemp("work")
    whole = taught(teacher, folder / "whole", RECIPE, labels)
    first = whole.manifest.notes["step_ranges"][0]["steps"]
    with pytest.MonkeyPatch.context() as patch:
        stop_at(first + STOPPED_AT, patch, DistillationTrainer, "training_step")
        with pytest.raises(KeyboardInterrupt):
            taught(teacher, folder / "student", RECIPE, labels)
    return folder / ".student.partial", state(whole.path)


@pytest.mark.parametrize(
    ("damaged", "content"),
    [
        ("*/checkpoint-*/optimizer.pt", b"null"),
        ("*/checkpoint-*/trainer_state.json", b"null"),
        ("*/checkpoint-*/model.safetensors", b""),
        ("*/checkpoint-*/rng_state.pth", b""),
        ("*/outcome.json", b"[]"),
        ("*/student.safetensors", b"null"),
        ("prepared/*.arrow", b""),
        ("prepared/precision.json", b""),
        ("*.npy", b"\x93NUMPY"),
    ],
)
def test_a_damaged_file_costs_no_more_than_its_part(
    damaged: str,
    content: bytes,
    work: tuple[Path, dict[str, Any]],
    teacher: Path,
    labels: LabelDir,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, expected = work
    shutil.copytree(folder, tmp_path / ".student.partial")
    found = sorted((tmp_path / ".student.partial" / ".work").glob(damaged))
    assert found
    found[-1].write_bytes(content)
    resumed = taught(teacher, tmp_path / "student", RECIPE, labels)
    assert "is damaged: it is deleted and made again" in caplog.text
    weights = state(resumed.path)
    assert weights.keys() == expected.keys()
    assert all((weights[name] - expected[name]).abs().max() < 1e-5 for name in expected)
    assert [path.name for path in tmp_path.iterdir()] == ["student"]


def test_without_the_best_checkpoint_a_training_begins_again(
    work: tuple[Path, dict[str, Any]], teacher: Path, labels: LabelDir, tmp_path: Path
) -> None:
    """It ends with the better of the best one and what follows."""
    folder, expected = work
    shutil.copytree(folder, tmp_path / ".student.partial")
    there = sorted((tmp_path / ".student.partial" / ".work").glob("*/checkpoint-*"))
    for checkpoint in there[:-1]:
        shutil.rmtree(checkpoint)
    weights = state(taught(teacher, tmp_path / "student", RECIPE, labels).path)
    assert all((weights[name] - expected[name]).abs().max() < 1e-5 for name in expected)


def test_work_goes_on_where_it_is_called_otherwise(
    work: tuple[Path, dict[str, Any]], teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best checkpoint is found where the folder lies now, by whatever path."""
    folder, expected = work
    (tmp_path / "place").mkdir()
    shutil.copytree(folder, tmp_path / "place" / ".student.partial")
    monkeypatch.chdir(tmp_path / "place")
    weights = state(taught(teacher, Path("student"), RECIPE, labels).path)
    assert all((weights[name] - expected[name]).abs().max() < 1e-5 for name in expected)


def test_an_error_at_the_first_step_leaves_nothing(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corrected command is another one, which unfinished work would refuse."""

    def failing(*given: Any, **named: Any) -> Any:
        raise RuntimeError("at the first step")

    with monkeypatch.context() as patch:
        patch.setattr(DistillationTrainer, "training_step", failing)
        with pytest.raises(RuntimeError, match="at the first step"):
            taught(teacher, tmp_path / "student", in_phases(Phase((Choice("kl"),))), labels)
    assert not any(tmp_path.iterdir())


def test_an_error_later_keeps_what_is_finished(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = DistillationTrainer.training_step, iter(range(1000))

    def failing(*given: Any, **named: Any) -> Any:
        if next(calls) == STOPPED_AT:
            raise RuntimeError("later")
        return step(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(DistillationTrainer, "training_step", failing)
        with pytest.raises(RuntimeError, match="later"):
            taught(teacher, tmp_path / "student", RECIPE, labels)
    assert list((tmp_path / ".student.partial").rglob("checkpoint-*"))
    with pytest.raises(CompressError, match="holds unfinished work of another command"):
        taught(teacher, tmp_path / "student", RECIPE, labels, seed=1)
