"""Pruning of attention heads, against masking and scores computed elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress.models.components import heads_per_layer
from compress.models.model_dir import Model
from compress.models.modeling.pruned import kept_heads
from compress.surgery.unit_masks import mask_hooks
from tests.support.pruning import pruned
from tests.support.tiny import PRUNABLE, classifier, load, physical_layers, write
from tests.support.training_data import state, train_rows

# A head of a model of width 32 with 4 heads: 8 rows of q, k and v with their biases, 8 columns of the output.
PER_HEAD = 3 * (8 * 32 + 8) + 32 * 8
# Queries and keys read the bottleneck of 16, values the whole width.
PER_MOBILEBERT_HEAD = 2 * (4 * 16 + 4) + (4 * 32 + 4) + 16 * 4


@pytest.mark.parametrize("family", PRUNABLE)
def test_the_weights_of_the_heads_are_gone(family: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier(family), family)
    made = pruned(whole, tmp_path / "small")
    heads = made.manifest.architecture["heads_per_layer"]
    assert sum(heads) == 4 * physical_layers(family) - 3 and min(heads) >= 1
    one = {"mobilebert": PER_MOBILEBERT_HEAD, "modernbert": 4 * 8 * 32}.get(family, PER_HEAD)  # ModernBERT: no biases
    assert made.manifest.architecture["layers"] == 2 and made.manifest.architecture["hidden_size"] == 32
    assert Model.open(whole).parameters - made.parameters == 3 * one
    stored = sum(tensor.numel() for tensor in state(made.path).values())
    assert stored == made.parameters


def test_uneven_heads_are_sliced_where_the_mask_was(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "5")
    small, tokenizer = load(made.path)
    whole, _ = load(teacher)
    kept = kept_heads(small)
    assert heads_per_layer(small) == [len(heads) for heads in kept] and sum(map(len, kept)) == 3
    inputs = tokenizer([row.text for row in train_rows()], padding=True, return_tensors="pt")
    with torch.no_grad(), mask_hooks(whole) as hooks:
        hooks.mask([[float(head in layer) for head in range(4)] for layer in kept])
        assert (whole(**inputs).logits - small(**inputs).logits).abs().max() <= 1e-5


def test_the_least_important_heads_go(teacher: Path, tmp_path: Path) -> None:
    """In one step without normalisation: the lowest scores of all, by a reference outside of this stage."""
    from compress.pruning.scoring import head_importance

    made = pruned(teacher, tmp_path / "small", "3", step=1.0, normalise=False)
    model, tokenizer = load(teacher)
    scores = head_importance(model, [(r.text, r.label or "") for r in train_rows()], tokenizer=tokenizer)
    lowest = np.argsort(scores.flatten().numpy())[:3]
    kept = kept_heads(load(made.path)[0])
    assert {4 * layer + head for layer, heads in enumerate(kept) for head in heads} == set(range(8)) - set(lowest)


def test_scores_are_computed_again_after_every_step(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compress.pruning.criteria import gradient

    masked: list[int] = []
    original = gradient.importance

    def spied(model: Any, batches: Any, masks: Any, **options: Any) -> torch.Tensor:
        masked.append(sum(int((mask == 0).sum()) for mask in masks))
        return original(model, batches, masks, **options)

    monkeypatch.setattr(gradient, "importance", spied)
    pruned(teacher, tmp_path / "small", "5", step=0.25)
    assert masked == [0, 2, 4]


def test_a_pruned_model_can_be_pruned_again(teacher: Path, tmp_path: Path) -> None:
    once = pruned(teacher, tmp_path / "once", "3")
    twice = pruned(once.path, tmp_path / "twice", "2")
    first, second = kept_heads(load(once.path)[0]), kept_heads(load(twice.path)[0])
    assert all(set(later) <= set(earlier) for earlier, later in zip(first, second, strict=True))
    assert sum(map(len, second)) == 3 and once.parameters - twice.parameters == 2 * PER_HEAD
    assert twice.manifest.parents[0]["sha256"] == once.sha256


def test_random_is_a_criterion(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", criterion="random")
    assert made.manifest.recipe["criterion"] == "random"
