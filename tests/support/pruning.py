"""Prune a tiny model, and read what the stage wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from compress.models.components import ffn_widths, heads_per_layer
from compress.models.model_dir import Model
from compress.pruning import prune as prune_module
from compress.requests.compression import prune
from tests.support.tiny import load
from tests.support.training_data import train_rows, validation_rows


def pruned(model: Path, output: Path, heads: str = "3", **options: Any) -> Model:
    given: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), "device": "cpu", "threads": 1}
    given |= {"heads": heads, "measure": False, **options}
    return prune(model, output, **given)


def curve(directory: Path) -> list[dict[str, str]]:
    with (directory / "pruning_curve.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


def content(made: Model) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.path / "pruning.json").read_text())
    return found


def timed(monkeypatch: pytest.MonkeyPatch, latency: Any) -> list[Path]:
    """Let a model be as fast as ``latency`` of its heads and neurons says; return what was timed."""
    asked: list[Path] = []

    def fake(directories: dict[str, Path], rows: Any, *, runtime: str, threads: int, batch_sizes: Any) -> list[Any]:
        found = []
        for name, place in directories.items():
            model, _ = load(place)
            value = latency(sum(heads_per_layer(model)), sum(ffn_widths(model)))
            ratio = latency(8, 128) / value
            found.append(prune_module.Speed(name, runtime, threads, batch_sizes[0], value, ratio, ratio, ratio))
        asked.append(place)
        return found

    monkeypatch.setattr(prune_module, "time_side_by_side", fake)
    monkeypatch.setattr(prune_module, "directory_for", lambda runtime, directory: directory)
    return asked
