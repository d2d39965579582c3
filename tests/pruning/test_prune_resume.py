"""A pruning that was stopped resumes without repeating its work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compress.models.modeling.pruned import kept_heads
from compress.pruning import choose_units as choose_units_module
from compress.pruning import scoring as scoring_module
from compress.training import phases as phases_module
from tests.support.pruning import pruned
from tests.support.tiny import load
from tests.support.training_data import TRAINING, state


def test_a_stopped_recovery_keeps_the_decision(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"recover": 1.0, "training": TRAINING}

    def stop(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(phases_module, "fit", stop)
        with pytest.raises(KeyboardInterrupt):
            pruned(teacher, tmp_path / "small", **options)
    assert not (tmp_path / "small").exists()
    monkeypatch.setattr(choose_units_module, "removal_path", stop)  # would be scored again
    assert pruned(teacher, tmp_path / "small", **options).manifest.stage


def test_a_stopped_recovery_keeps_the_masks(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"schedule": "cubic", "recover": 9.0, "training": replace(TRAINING, max_steps=10)}
    straight = pruned(teacher, tmp_path / "straight", **options)
    original, calls = phases_module.fit, list[int]()

    def stopped(*given: Any, **named: Any) -> Any:
        calls.append(given[3].training.max_steps)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*given, **named)

    monkeypatch.setattr(phases_module, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        pruned(teacher, tmp_path / "small", **options)
    again = pruned(teacher, tmp_path / "small", **options)
    assert calls == [6, 4, 4]
    weights = state(straight.path)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in state(again.path).items())


def test_a_stopped_oracle_resumes_after_its_last_evaluation(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, asked = scoring_module.value_of, []

    def counted(*arguments: Any) -> float:
        if len(asked) == 11:  # in the second scoring; the first has 9
            monkeypatch.setattr(scoring_module, "value_of", original)
            raise KeyboardInterrupt
        asked.append(1)
        return float(original(*arguments))

    monkeypatch.setattr(scoring_module, "value_of", counted)
    with pytest.raises(KeyboardInterrupt):
        pruned(teacher, tmp_path / "small", "4", criterion="oracle", step=0.25)
    values = tmp_path / ".small.partial" / ".work" / "values"
    assert len(list(values.iterdir())) == 11
    later = []
    monkeypatch.setattr(scoring_module, "value_of", lambda *given: later.append(1) or original(*given))
    made = pruned(teacher, tmp_path / "small", "4", criterion="oracle", step=0.25)
    assert len(later) == (1 + 8) + (1 + 6) - 11
    once = pruned(teacher, tmp_path / "once", "4", criterion="oracle", step=0.25)
    assert kept_heads(load(made.path)[0]) == kept_heads(load(once.path)[0])
