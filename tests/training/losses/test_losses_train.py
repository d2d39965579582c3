"""Every loss trains a student through the real pipeline, and what it learned beside it is gone afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from compress import plugins
from compress.recipes import StudentRecipe, parse
from compress.training import build_student
from tests.support.tiny import classifier, load
from tests.support.training_data import distilled, pool_file, train_rows

MASKED = [name for name in plugins.names("losses") if "targets" in plugins.find("losses", name).needs]
NOT_ON_WHOLE_TEXT = {*MASKED, "mixed-vocabulary", "hard-label"}
ON_WHOLE_TEXT = [name for name in plugins.names("losses") if name not in NOT_ON_WHOLE_TEXT]


def recipe(**parts: Any) -> StudentRecipe:
    training = {"max_steps": 4, "batch_size": 16, "evaluations": 1, "precision": "float32", "learning_rate": 1e-3}
    table = {"description": "Some losses.", "name": "some", "training": training, **parts}
    return parse(StudentRecipe, table, source="some.toml")


def changed(before: torch.nn.Module, directory: Path) -> set[str]:
    """Return the names of the weights that training changed, none of them lost or added."""
    after = load(directory)[0].state_dict()
    assert set(after) == set(before.state_dict())
    return {name for name, weight in before.state_dict().items() if not torch.equal(weight, after[name])}


@pytest.mark.parametrize(
    ("losses", "masking"), [(ON_WHOLE_TEXT, 0.0), (MASKED, 0.15)], ids=["whole text", "masked text"]
)
def test_losses_train_a_student(losses: list[str], masking: float, teacher: Path, tmp_path: Path) -> None:
    phase = {"losses": [{"name": name} for name in losses], "masking": masking}
    student = recipe(architecture={"name": "transformer", "depth": 2}, phases=[phase])
    made = distilled(teacher, student, tmp_path / "student", unlabeled=pool_file(tmp_path / "pool.txt"), device="cpu")
    moved = changed(load(teacher)[0], made.path)
    assert {"bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.output.dense.weight"} <= moved
    assert made.parameters == sum(parameter.numel() for parameter in classifier().parameters())


@pytest.mark.parametrize("by_layer", ["progressive", "stacked"])
def test_losses_teach_one_layer_after_the_other(by_layer: str, teacher: Path, tmp_path: Path) -> None:
    losses = [{"name": "attention-kl"}, {"name": "first-cosine"}]
    student = recipe(
        architecture={"name": "transformer", "depth": 2},
        phases=[{"losses": losses, "by_layer": by_layer}, {"losses": [{"name": "kl"}]}],
    )
    made = distilled(teacher, student, tmp_path / "student", unlabeled=pool_file(tmp_path / "pool.txt"), device="cpu")
    assert "classifier.weight" in changed(load(teacher)[0], made.path)


def test_mixed_vocabulary_trains_a_small_vocabulary(teacher: Path, tmp_path: Path) -> None:
    student = recipe(
        architecture={"name": "transformer", "depth": 2, "hidden_size": 16},
        phases=[
            {"losses": [{"name": "mixed-vocabulary"}, {"name": "shared-projection"}]},
            {"losses": [{"name": "kl"}]},
        ],
        vocabulary={"size": 100},
    )
    made = distilled(teacher, student, tmp_path / "student", unlabeled=pool_file(tmp_path / "pool.txt"), device="cpu")
    assert load(made.path)[0].get_input_embeddings().num_embeddings <= 100


def test_the_control_of_a_student_of_mixed_text_reads_none(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_student, "mixer", lambda *_: lambda *_: pytest.fail("text was mixed"))
    student = recipe(
        architecture={"name": "transformer", "depth": 2, "hidden_size": 16},
        phases=[{"losses": [{"name": "mixed-vocabulary"}]}],
        vocabulary={"size": 100},
    )
    made = distilled(
        teacher,
        student,
        tmp_path / "control",
        unlabeled=pool_file(tmp_path / "pool.txt"),
        train=train_rows(),
        control=True,
        device="cpu",
    )
    assert load(made.path)[0].get_input_embeddings().num_embeddings <= 100
