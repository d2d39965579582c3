"""Requests that prune refuses, and the advice in the message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from tests.support.labelling import label
from tests.support.pruning import pruned
from tests.support.tiny import bilstm, classifier, onnx_directory, write
from tests.support.training_data import pool_file, train_rows, validation_rows


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ("7", {}, "each of its 2 layers keeps at least one"),
        ("160%", {}, "is not between 0% and 100%"),
        ("abc", {}, "neither a share nor a count"),
        ("2", {"criterion": "gradeint"}, "Did you mean 'gradient'"),
        ("2", {"examples": 0}, "examples = 0 must be at least 1"),
        ("2", {"step": 0.0}, "step = 0.0 must be above 0"),
        ("2", {"step": 1.5}, "step = 1.5 must be at most 1"),
        ("2", {"recover": -1.0}, "recover = -1.0 must be at least 0"),
        ("2", {"recover": 1.0, "validation": []}, "--recover needs rows to select the checkpoint by"),
        ("2", {"train": []}, "no rows to score the heads on"),
        ("2", {"train": [Example("a b", None, "great")]}, "which the model does not know"),
        ("2", {"validation": train_rows()[:4]}, "drop-overlap"),
        ("2", {"metric": "pearson"}, "pearson"),
    ],
)
def test_what_cannot_be_pruned(
    heads: str, options: dict[str, Any], message: str, teacher: Path, tmp_path: Path
) -> None:
    with pytest.raises(CompressError, match=message):
        pruned(teacher, tmp_path / "out", heads, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("albert", {"layers": "1"}, "an ALBERT has one layer"),
        ("mobilebert", {"ffn": "50%"}, "several feed-forward networks"),
        ("mobilebert", {"hidden": "50%"}, "a mobilebert cannot be made narrower"),
        ("bert", {"layers": "2"}, "removes 2 of the model's 2 layers, but one must stay"),
        ("bert", {"layers": "max"}, "--layers max has no end"),
        ("bert", {"heads": "max"}, "--heads max has no end; give an amount, or --max-accuracy-drop"),
        ("bert", {"ffn": "90%"}, "keeps at least 32; give at most 64"),
        ("bert", {"ffn": "50%", "criterion": "oracle"}, "--criterion oracle scores heads only"),
        ("bert", {}, "nothing to remove"),
        ("bert", {"speedup": 0.5}, "speedup = 0.5 must be above 1"),
        ("bert", {"max_accuracy_drop": -1.0}, "max_accuracy_drop = -1.0 must be above 0"),
        ("bert", {"max_accuracy_drop": 1.0, "speedup": 2.0}, "two ends of one path"),
        ("bert", {"heads": "2", "schedule": "cubic"}, "add --recover EPOCHS"),
        ("bert", {"layers": "1", "schedule": "cubic", "recover": 1.0}, "give --heads or --ffn"),
        ("bert", {"heads": "3", "keep_heads": 3}, "removes 3 of the model's 8 heads, but each of its 2 layers keeps"),
        ("bert", {"heads": "2", "multiple": 0}, "multiple = 0 must be at least 1"),
    ],
)
def test_what_else_cannot_be_pruned(family: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier(family), family)
    with pytest.raises(CompressError, match=message):
        pruned(whole, tmp_path / "out", **{"heads": "", **options})
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("bert", {"heads": "max", "max_accuracy_drop": 5.0, "validation": []}, "give them with --validation FILE"),
        ("bert", {"heads": "max", "speedup": 1.5, "hidden": "25%"}, "--hidden would change what a target has decided"),
        ("bert", {"heads": "2", "schedule": "cubic", "recover": 1.0, "scope": "layer"}, "--scope would change nothing"),
        ("bert", {"heads": "2", "criterion": "fisher"}, "unknown criterion 'fisher'"),
        ("bert", {"layers": "1", "recovery": "hidden"}, "--recovery changes nothing without --recover EPOCHS"),
        ("bert", {"layers": "1", "speedup_batch_size": 7}, "--speedup-batch-size changes nothing without --speedup"),
        ("bert", {"layers": "1", "criterion": "oracle"}, "--criterion changes nothing without --heads N or --ffn N"),
        ("bert", {"layers": "1", "recompute": False}, "--no-recompute changes nothing without --heads N or"),
        ("bert", {"heads": "2", "scope": "layer", "normalise": False}, "--no-normalise changes nothing without --scop"),
        ("bert", {"ffn": "50%", "keep_heads": 2}, "--keep-heads changes nothing without --heads"),
        ("bert", {"heads": "2", "multiple": 8}, "--multiple changes nothing without --ffn"),
        ("bert", {"heads": "2", "recover": float("nan")}, "recover = nan must be a finite number"),
        ("bert", {"heads": "2", "recover": float("inf")}, "recover = inf must be a finite number"),
        ("bert", {"max_accuracy_drop": float("nan")}, "max_accuracy_drop = nan must be a finite number"),
        ("bert", {"ffn": "3", "multiple": 8}, "--ffn 3 of 128 neurons would remove none: .* of 8; ask for 5 or more"),
        ("bert", {"ffn": "8", "multiple": 16, "scope": "layer"}, "none: all layers come down to one .*; ask for 16 or"),
        ("bert", {"vocabulary": [Example(" ")], "heads": ""}, "the corpus has no text that the tokenizer knows"),
        ("bert", {"layers": "1", "heads": "4"}, "removes 4 of the model's 4 heads"),
        ("bert", {"heads": "50%", "keep_heads": 5}, "--heads 50%: every layer keeps 5 heads, and none has more"),
        ("bert", {"hidden": "1"}, "--hidden 1 of 32 hidden dimensions would remove none: .* of 8; ask for 4 or more"),
        ("bert", {"layers": "1.5"}, "give a share such as 60% or 0.6, or a count such as 2$"),
        ("electra", {"hidden": "50%"}, "is the width of this model's embeddings"),
        ("deberta-v2", {"heads": "2", "recover": 1.0, "recovery": "relations"}, "--recovery relations reads queries"),
        ("modernbert", {"heads": "2", "recover": 1.0, "schedule": "cubic"}, "begin at zero for a model without"),
    ],
)
def test_combinations_that_cannot_be(family: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier(family), family)
    with pytest.raises(CompressError, match=message):
        pruned(whole, tmp_path / "out", **{"heads": "", **options})
    assert list(tmp_path.iterdir()) == [whole], "another request finds nothing in its way"


def test_labels_without_recovery_or_of_another_teacher(teacher: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", classifier("bert", seed=9))
    labels = label(other, pool_file(tmp_path / "pool.txt"), tmp_path / "labels", compute=Compute(threads=1))
    with pytest.raises(CompressError, match="--labels changes nothing without --recover EPOCHS"):
        pruned(teacher, tmp_path / "out", labels=[labels])
    with pytest.raises(CompressError, match="which is neither tiny-bert nor its teacher"):
        pruned(teacher, tmp_path / "out", labels=[labels], recover=1.0)


def test_a_model_without_heads_and_an_onnx_model(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="heads of a 'compress-bilstm' model are not known to compress"):
        pruned(write(tmp_path / "bilstm", bilstm()), tmp_path / "out")
    with pytest.raises(CompressError, match="is an ONNX model"):
        pruned(onnx_directory("bert").path, tmp_path / "out")


@pytest.mark.parametrize("role", ["train", "validation"])
def test_an_unknown_label_is_named_with_its_row(role: str, teacher: Path, tmp_path: Path) -> None:
    rows = {"train": train_rows(), "validation": validation_rows()}[role]
    rows[6] = replace(rows[6], label="great")
    with pytest.raises(CompressError, match=rf"Row 7 of {role} \(.*\) has the label 'great', which the model"):
        pruned(teacher, tmp_path / "out", "2", **{role: rows})
