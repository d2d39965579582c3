"""A stage: what its manifest holds, and which unfinished work it resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from compress.errors import CompressError
from compress.models.model_dir import Model
from compress.models.output_dir import Stage
from tests.support.tiny import classifier, write

DATA = ({"role": "train", "name": "train.csv", "rows": 3, "sha256": "0" * 64},)


@pytest.fixture
def teacher(tmp_path: Path) -> Model:
    return Model.open(write(tmp_path / "teacher", classifier()))


def test_a_model_is_written_with_what_the_stage_knows(teacher: Model, tmp_path: Path) -> None:
    parents = {"teacher": teacher, "encoder": None}
    with Stage.begin("distill", tmp_path / "made", parents=parents, settings={}, data=DATA, seed=3) as stage:
        stage.write_model(teacher.load(), teacher.tokenizer, notes={"recipe": "tiny"})
    manifest = Model.open(tmp_path / "made").manifest
    assert (manifest.stage, manifest.name, manifest.kind) == ("distill", "made", "model")
    assert (manifest.task, manifest.labels, manifest.data) == (teacher.task, teacher.labels, DATA)
    assert manifest.parents == ({"role": "teacher", "name": "teacher", "sha256": teacher.sha256},)
    assert (manifest.seeds, manifest.notes) == ({"seed": 3}, {"recipe": "tiny"})
    assert manifest.architecture["parameters"] == teacher.parameters


@pytest.mark.parametrize("changed", [{"seed": 4}, {"settings": {"epochs": 2}}, {"data": ()}, {"parents": "others"}])
def test_only_the_same_request_resumes(changed: dict[str, object], teacher: Model, tmp_path: Path) -> None:
    request = {"parents": {"teacher": teacher}, "settings": {"epochs": 1}, "data": DATA, "seed": 3}
    with pytest.raises(KeyboardInterrupt), Stage.begin("distill", tmp_path / "made", **request) as stage:  # type: ignore[arg-type]
        (stage.scratch / "progress").touch()
        raise KeyboardInterrupt
    others = {"parents": {"encoder": teacher}} if "parents" in changed else changed
    with (
        pytest.raises(CompressError, match="--force"),
        Stage.begin("distill", tmp_path / "made", **{**request, **others}),  # type: ignore[arg-type]
    ):
        pass
    with Stage.begin("distill", tmp_path / "made", **request) as stage:  # type: ignore[arg-type]
        assert (stage.scratch / "progress").exists()
        stage.finish(kind="heads")


def test_a_stage_that_draws_nothing_records_no_seed(teacher: Model, tmp_path: Path) -> None:
    with Stage.begin("label", tmp_path / "made", parents={"teacher": teacher}, settings={}) as stage:
        stage.finish(kind="labels", data=DATA)
        assert '"seeds": {}' in (stage.working / "compress.json").read_text()
