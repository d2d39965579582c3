"""Recovery after pruning, and the cubic schedule that prunes during it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress.data import Example
from compress.inference.compute import Compute
from compress.models.components import ffn_widths, heads_per_layer
from compress.models.modeling.pruned import kept_heads
from compress.training import phases as phases_module
from compress.training.training_data import EpochSampler
from tests.support.labelling import label
from tests.support.pruning import content, curve, pruned
from tests.support.tiny import load
from tests.support.training_data import TRAINING, pool_file, state, train_rows


def test_recovery_changes_the_weights_but_not_the_heads(teacher: Path, tmp_path: Path) -> None:
    labels = label(teacher, pool_file(tmp_path / "pool.txt"), tmp_path / "labels", compute=Compute(threads=1))
    plain = pruned(teacher, tmp_path / "plain")
    made = pruned(teacher, tmp_path / "small", recover=2.0, labels=[labels], training=replace(TRAINING, epochs=9.0))
    assert kept_heads(load(made.path)[0]) == kept_heads(load(plain.path)[0])
    assert not torch.equal(state(made.path)["classifier.weight"], state(plain.path)["classifier.weight"])
    rows = curve(made.path)
    assert [row["recovered"] for row in rows[-2:]] == ["False", "True"]
    assert made.manifest.notes["recovery"]["planned_steps"] == 17  # 2 * (90 + 40) / 16
    assert ("unlabeled", 90) in [(d["role"], d["rows"]) for d in made.manifest.data]
    assert not {".work", "checkpoints"} & {path.name for path in made.path.iterdir()}


@pytest.mark.parametrize(("epochs", "steps"), [(0.1, 4), (0.5, 20), (1.0, 40), (3.0, 40)])
def test_few_rows_get_the_least_steps_or_their_share_of_a_pass(
    epochs: float, steps: int, teacher: Path, tmp_path: Path
) -> None:
    few = replace(TRAINING, min_steps=40)
    made = pruned(teacher, tmp_path / "small", recover=epochs, training=few)  # 40 rows: a pass is 3 steps
    assert made.manifest.notes["recovery"]["planned_steps"] == steps


def test_recovery_brings_the_pruned_model_nearer_to_the_teacher(teacher: Path, tmp_path: Path) -> None:
    labels = label(teacher, pool_file(tmp_path / "pool.txt"), tmp_path / "labels", compute=Compute(threads=1))
    plain = pruned(teacher, tmp_path / "plain", "4")
    longer = replace(TRAINING, learning_rate=2e-3, evaluations=1)
    made = pruned(teacher, tmp_path / "small", "4", recover=10.0, labels=[labels], training=longer)

    def distance(directory: Path) -> float:
        model, tokenizer = load(directory)
        inputs = tokenizer([e.text for e, _ in labels], padding=True, return_tensors="pt")
        with torch.no_grad():
            return float((model(**inputs).logits - torch.tensor(np.stack([z for _, z in labels]))).pow(2).mean())

    assert distance(made.path) < 0.7 * distance(plain.path)


@pytest.mark.parametrize("recovery", ["hidden", "relations"])
def test_recovery_learns_from_the_inside_too(
    recovery: str, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    original = phases_module.fit

    def spied(*given: Any, **named: Any) -> Any:
        losses.append([choice.name for choice in named["phases"][0].losses])
        return original(*given, **named)

    monkeypatch.setattr(phases_module, "fit", spied)
    corpus = [Example(row.text) for row in train_rows()]
    made = pruned(
        teacher,
        tmp_path / "small",
        "3",
        hidden="25%",
        recover=1.0,
        recovery=recovery,
        training=TRAINING,
        vocabulary=corpus,
    )
    assert losses == [["logit-mse", {"hidden": "hidden-mse", "relations": "relations"}[recovery]]]
    assert made.manifest.notes["recovery"]["steps"] > 0


def test_cubic_schedule_masks_during_recovery(teacher: Path, tmp_path: Path) -> None:
    longer = replace(TRAINING, max_steps=20, learning_rate=1e-3)
    made = pruned(
        teacher,
        tmp_path / "small",
        "50%",
        ffn="50%",
        multiple=8,
        schedule="cubic",
        recover=9.0,
        training=longer,
        hidden="25%",
    )
    model, _ = load(made.path)
    assert sum(heads_per_layer(model)) == 4 and sum(ffn_widths(model)) == 64 and model.config.hidden_size == 24
    assert made.manifest.notes["recovery"]["planned_steps"] == 8  # 12 masked the units
    assert [cut["removal"] for cut in content(made)["cuts"]] == ["nothing", "heads", "neurons", "hidden", "recovery"]
    assert not (made.path / "pruning_curve.csv").exists() and not (made.path / ".work").exists()


def test_a_cubic_schedule_has_a_constant_rate_and_row_order(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, rates, read = phases_module.train, list[str](), list[list[int]]()

    def spied(*given: Any, **named: Any) -> Any:
        rates.append(given[3].training.schedule)
        read.append([])
        return original(*given, **named)

    def recorded(self: EpochSampler) -> Iterator[int]:
        rows = list(in_order(self))
        read[-1] += rows
        return iter(rows)

    in_order = EpochSampler.__iter__
    monkeypatch.setattr(phases_module, "train", spied)
    monkeypatch.setattr(EpochSampler, "__iter__", recorded)
    pruned(teacher, tmp_path / "small", "50%", schedule="cubic", recover=1.0, training=TRAINING)
    assert rates == ["constant", "linear"]
    assert sorted(read[0]) == sorted(read[1]) and read[0][:8] != read[1][:8]


def test_heads_removed_in_training_are_evaluated_as_trained(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model that was trained has its neurons masked too, so that both cuts are the same model."""
    longer = replace(TRAINING, max_steps=10)
    made = pruned(
        teacher, tmp_path / "small", "4", ffn="50%", multiple=8, schedule="cubic", recover=9.0, training=longer
    )
    _, heads, neurons, _ = content(made)["cuts"]
    assert heads["value"] == neurons["value"] and heads["trained"] and neurons["trained"]
    assert "weights trained" in (made.path / "report.md").read_text()
    assert content(made)["criterion"] == "gradual-pruning"
