"""What a manifest knows of the rows that a model has seen: sets as wholes, and rows of sets that are given too."""

from __future__ import annotations

from pathlib import Path

import pytest

from compress.data import Example, check_roles
from compress.errors import CompressError
from compress.models.manifest import Manifest
from compress.models.model_dir import Model, check_unseen, tell_seen
from compress.models.output_dir import finish
from tests.support.tiny import classifier, write

TRAIN = [Example(f"text {number}", label="good") for number in range(40)]
VALIDATION = [*TRAIN[:1], Example("another", label="bad"), *(Example(f"new {n}", label="bad") for n in range(10))]
TEST = [Example("a third", label="bad"), Example("Text 7.", label="good"), Example("text 9", label="good")]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A model that was made with train, but for the row that is in validation too."""
    directory = write(tmp_path / "model", classifier("bert"))
    checked = check_roles({"train": TRAIN, "validation": VALIDATION})
    assert checked.rows["train"] == 39
    finish(directory, Manifest(stage="finetune", labels=("bad", "good"), data=tuple(checked.described())))
    return Model.open(directory)


@pytest.mark.parametrize("train", [TRAIN, TRAIN[1:], [Example(row.text) for row in TRAIN[1:]]])
def test_rows_of_a_set_that_a_model_was_made_with_are_named(
    train: list[Example], model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    tell_seen([model], TEST, {"train": train})
    labelled = train[0].label is not None  # those without labels are another set
    said = ["2 of the 3 rows of test (row 2, 3) are in the train rows that model was made with"] * labelled
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == said


def test_nothing_is_said_of_rows_that_no_manifest_names(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    tell_seen([model], TEST, {"train": TRAIN[:20], "validation": VALIDATION})
    tell_seen([model], [Example("none")], {"train": TRAIN})
    assert not caplog.records


def test_a_set_is_recognised_as_it_was_given_and_as_it_was_used(model: Model) -> None:
    for rows in (TRAIN, TRAIN[1:]):
        with pytest.raises(CompressError, match="the test rows are the train rows of .*model"):
            check_unseen([model], rows, "test")
    check_unseen([model], TRAIN[2:], "test")
