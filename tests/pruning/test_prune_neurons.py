"""Pruning of feed-forward neurons, alone and with heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from compress.models.components import ffn_widths
from compress.models.model_dir import Model
from tests.support.pruning import content, curve, pruned
from tests.support.tiny import PRUNABLE, classifier, load, physical_layers, write
from tests.support.training_data import train_rows


def test_neurons_are_removed_in_multiples_uneven_over_the_layers(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "", ffn="45%", multiple=8, step=0.5, normalise=False)
    widths = load(made.path)[0].config.ffn_per_layer
    assert sum(widths) == 72 and all(width % 8 == 0 for width in widths)  # 70.4 stay of 128
    assert made.manifest.notes["removed"] == "56 of 128 neurons"
    assert Model.open(teacher).parameters - made.parameters == 56 * (32 + 1 + 32)
    rows = curve(made.path)
    assert [int(row["neurons_removed"]) for row in rows] == [0, 56]  # 45% is the nearest to half a step
    assert [row["chosen"] for row in rows] == ["False", "True"]


def test_the_least_important_neurons_go(teacher: Path, tmp_path: Path) -> None:
    """By a reference outside of this stage, in one step."""
    from compress.pruning.scoring import head_importance

    made = pruned(teacher, tmp_path / "small", "", ffn="25%", multiple=1, step=1.0, normalise=False)
    model, tokenizer = load(teacher)
    rows = [(r.text, r.label or "") for r in train_rows()]
    scores = head_importance(model, rows, tokenizer=tokenizer, part="neurons")
    lowest = set(np.argsort(scores.flatten().numpy(), kind="stable")[:32].tolist())
    small = load(made.path)[0]
    for layer in range(2):
        stay = [neuron for neuron in range(64) if 64 * layer + neuron not in lowest]
        whole, cut = (one.bert.encoder.layer[layer].intermediate.dense.weight for one in (model, small))
        assert torch.equal(whole[stay], cut)


@pytest.mark.parametrize("family", [family for family in PRUNABLE if family != "mobilebert"])
def test_heads_and_neurons_go_together(family: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier(family), family)
    made = pruned(whole, tmp_path / "small", "25%", ffn="50%", multiple=16, step=0.5)
    architecture = made.manifest.architecture
    layers = physical_layers(family)
    assert sum(architecture["heads_per_layer"]) == 3 * layers and sum(architecture["ffn_per_layer"]) == 32 * layers
    cuts = content(made)["cuts"]
    assert [cut["removal"] for cut in cuts] == ["nothing", "heads", "neurons"]
    assert cuts[0]["parameters"] > cuts[1]["parameters"] > cuts[2]["parameters"] == made.parameters
    if cuts[0]["flops"] is not None:
        assert cuts[0]["flops"] > cuts[1]["flops"] > cuts[2]["flops"]


def test_equal_widths_keep_the_stock_class(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "", ffn="45%", multiple=8, scope="layer")
    small = load(made.path)[0]
    assert small.config.intermediate_size == 32 and ffn_widths(small) == [32, 32]  # 35.2 of 64 stay of each
    assert type(small).__name__ == "BertForSequenceClassification"
