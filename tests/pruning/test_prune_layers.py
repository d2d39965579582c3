"""Pruning of layers, and the layers that recovery maps to."""

from __future__ import annotations

import csv
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress.models.components import heads_per_layer
from compress.training import phases as phases_module
from tests.support.pruning import content, pruned
from tests.support.tiny import classifier, load, write
from tests.support.training_data import TRAINING, train_rows


def test_the_layer_that_is_missed_least_goes(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "", layers="1")
    model, tokenizer = load(teacher)
    losses = []
    for gone in range(2):
        shallow = deepcopy(model)
        del shallow.bert.encoder.layer[gone]
        inputs = tokenizer([row.text for row in train_rows()], padding=True, return_tensors="pt")
        gold = torch.tensor([["negative", "positive"].index(row.label or "") for row in train_rows()])
        with torch.no_grad():
            losses.append(float(torch.nn.functional.cross_entropy(shallow(**inputs).logits, gold)))
    small = load(made.path)[0]
    assert small.config.kept_layers == [1 - int(np.argmin(losses))]
    assert type(small).__name__ == "BertForSequenceClassification"  # a stock class holds it
    assert content(made)["layers"][0]["loss"] == pytest.approx(min(losses), rel=1e-4)
    assert not (made.path / "pruning_curve.csv").exists()


def test_what_is_left_learns_what_the_next_layers_were_fed_with(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = []
    original = phases_module.fit

    def spied(*given: Any, **named: Any) -> Any:
        maps.append(named["phases"][0].losses[1].options)
        return original(*given, **named)

    monkeypatch.setattr(phases_module, "fit", spied)
    whole = write(tmp_path / "whole", classifier("bert", layers=4))
    made = pruned(whole, tmp_path / "small", "", layers="2", recover=1.0, recovery="hidden", training=TRAINING)
    kept = made.manifest.architecture["kept_layers"]
    assert maps == [{"layers": f"{kept[1]},4"}] and len(kept) == 2


def test_the_page_numbers_layers_as_in_the_unpruned_model(teacher: Path, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier("bert", layers=3))
    once = pruned(whole, tmp_path / "once", "", layers="1")
    twice = pruned(once.path, tmp_path / "twice", "2")
    with (twice.path / "heads-left.csv").open(newline="") as handle:
        rows = list(csv.reader(handle))[1:]
    heads = heads_per_layer(load(twice.path)[0])
    assert [[int(float(value)) for value in row[1:]] for row in rows] == [[4, left] for left in heads]
