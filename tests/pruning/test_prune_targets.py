"""Pruning to a limit of the accuracy drop, or to a speed-up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress.errors import CompressError
from compress.models.components import ffn_widths, heads_per_layer
from compress.pruning import prune as prune_module
from tests.support.pruning import content, curve, pruned, timed
from tests.support.tiny import load


def test_an_accuracy_limit_stops_where_the_interval_falls_below(teacher: Path, tmp_path: Path) -> None:
    path = [float(row["low"]) for row in curve(pruned(teacher, tmp_path / "far", "6", step=0.125).path)]
    limit = -(path[1] + min(path)) / 2  # some step, and not the first, goes beyond it
    made = pruned(teacher, tmp_path / "small", "max", step=0.125, max_accuracy_drop=limit)
    rows = curve(made.path)
    taken = [row["chosen"] for row in rows].index("True")
    lows = [float(row["low"]) for row in rows]
    assert lows == path[: len(lows)] and len(lows) == taken + 2
    assert min(lows[: taken + 1]) >= -limit > lows[taken + 1]
    assert sum(heads_per_layer(load(made.path)[0])) == int(rows[taken]["heads_kept"]) < 8


def test_a_limit_that_no_step_keeps_is_said(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=r"drop 0.1 allows nothing: the first step is .* 16 rows of val"):
        pruned(teacher, tmp_path / "small", "", max_accuracy_drop=0.1)
    assert not (tmp_path / "small").exists()


def test_a_speed_is_reached_with_the_fewest_removals(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = timed(monkeypatch, lambda heads, neurons: 10.0 + heads + neurons / 4)  # 50 at first
    made = pruned(teacher, tmp_path / "small", "", speedup=1.5, step=0.125, multiple=8)
    model, _ = load(made.path)
    heads, neurons = sum(heads_per_layer(model)), sum(ffn_widths(model))
    rows = curve(made.path)
    reached = [50 / (10 + int(row["heads_kept"]) + int(row["neurons_kept"]) / 4) >= 1.5 for row in rows]
    taken = reached.index(True)
    assert (heads, neurons) == (int(rows[taken]["heads_kept"]), int(rows[taken]["neurons_kept"]))
    assert rows[taken]["chosen"] == "True" and 1 <= len(asked) <= 4


def test_a_speed_out_of_reach_is_said(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, lambda heads, neurons: 10.0 + heads)
    with pytest.raises(CompressError, match=r"--speedup 3 is out of reach: .* x1.50 \(1.50 to 1.50\) as fast here at"):
        pruned(teacher, tmp_path / "small", "max", speedup=3.0)


def test_a_speed_known_roughly_only_decides_and_its_interval_is_told(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = timed(monkeypatch, lambda heads, neurons: 10.0 + heads + neurons / 4)
    exact = prune_module.time_side_by_side

    def rough(*given: Any, **named: Any) -> list[Any]:
        return [replace(one, low=one.speedup / 2, high=2 * one.speedup) for one in exact(*given, **named)]

    monkeypatch.setattr(prune_module, "time_side_by_side", rough)
    made = pruned(teacher, tmp_path / "small", "", speedup=1.5, step=0.125, multiple=8)
    target = content(made)["target"]
    assert target["low"] < 1.5 <= target["value"] < target["high"] and len(asked) == len(set(asked))
    told = f"×{target['value']:.2f} (×{target['low']:.2f} to ×{target['high']:.2f}"
    assert told in (made.path / "report.md").read_text()


def test_a_speed_that_is_there_already_costs_nothing_more(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, lambda heads, neurons: float(heads))
    made = pruned(teacher, tmp_path / "small", "max", layers="1", speedup=1.9)
    assert heads_per_layer(load(made.path)[0]) == [4]
    assert made.manifest.notes["removed"].startswith("1 of 2 layers, 0 of 4 heads")
    assert content(made)["target"]["value"] == 2.0
    assert "Asked for ×1.90 at batch size 1; when it was decided, ×2.00" in (made.path / "report.md").read_text()


def test_a_new_target_is_accepted_after_an_unreachable_one(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="allows nothing"):
        pruned(teacher, tmp_path / "small", "", max_accuracy_drop=0.1)
    assert list(tmp_path.iterdir()) == []
    assert pruned(teacher, tmp_path / "small", "max", max_accuracy_drop=99.0).manifest.stage


def test_layers_that_already_cost_too_much_are_blamed_themselves(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="is broken before any head or neuron is removed: the layers"):
        pruned(teacher, tmp_path / "small", "max", layers="1", max_accuracy_drop=0.1)
