"""The study of Optuna: what it begins with, goes on with after a stop, and learns."""

from __future__ import annotations

import builtins
import random
from pathlib import Path
from typing import Any

import pytest

from compress.errors import CompressError
from compress.searching.space import ShapeSampler, committed, import_optuna, space_for
from tests.searching.test_space import MINILM

SPACE = space_for(MINILM)


def opened(folder: Path, seed: int = 0) -> ShapeSampler:
    return ShapeSampler(folder / "sampler.json", SPACE, seed)


def go_on(sampler: ShapeSampler, count: int) -> list[str]:
    """Ask for shapes and call those of three families too slow."""
    found = []
    for _ in range(count):
        trial, shape = sampler.ask()
        slow = shape.family in {"transformer", "bilstm", "pruned"}
        sampler.tell(trial, None if slow else (5.0, 0.9), {"min_speedup": 2.0 if slow else -1.0})
        found.append(shape.key)
    return found


def test_it_begins_with_the_committed_shapes(tmp_path: Path) -> None:
    sampler = opened(tmp_path)
    assert go_on(sampler, 5) == [shape.key for shape in committed(SPACE)]


def tell_drawn(sampler: ShapeSampler, count: int) -> list[str]:
    """Ask for shapes and say of each what its name draws: that it was not trained, or how far from the limit it is."""
    found = []
    for _ in range(count):
        trial, shape = sampler.ask()
        drawn = random.Random(shape.key)
        values = None if drawn.random() < 0.2 else (drawn.uniform(1, 6), drawn.uniform(0.5, 1))
        sampler.tell(trial, values, {"max_accuracy_drop": drawn.uniform(-1, 3), "fault": float(values is None)})
        found.append(shape.key)
    return found


def seen(sampler: ShapeSampler) -> list[tuple[Any, ...]]:
    """Return what the estimator learns from."""
    return [(one.state, one.params, one.values, one.constraints, one.distributions) for one in sampler.study.trials]


@pytest.mark.parametrize("stop", [1, 6, 16])
def test_a_stop_changes_nothing_of_what_follows(stop: int, tmp_path: Path) -> None:
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = opened(tmp_path / "whole")
    expected = tell_drawn(whole, 24)
    assert {bool(one.values) for one in whole.study.trials} == {True, False}

    sampler = opened(tmp_path / "stopped")
    tell_drawn(sampler, stop)
    sampler.ask()  # the command is killed before it tells
    sampler = opened(tmp_path / "stopped")
    assert tell_drawn(sampler, 24 - stop) == expected[stop:]
    assert seen(sampler) == seen(whole)
    assert [shape.key for shape in sampler.told()] == list(dict.fromkeys(expected))


def test_how_far_a_shape_is_from_the_limits_is_learned_from(tmp_path: Path) -> None:
    sampler = opened(tmp_path)
    trial, _ = sampler.ask()
    sampler.tell(trial, (1.0, 0.9), {"min_speedup": 2.0, "max_size": -1.0})
    assert sampler.study.trials[0].constraints == {"min_speedup": 2.0, "max_size": -1.0}


def test_seeds_differ(tmp_path: Path) -> None:
    found = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        sampler = opened(tmp_path / str(seed), seed)
        found.append(go_on(sampler, 8)[4:])
    assert found[0] != found[1]
    assert all(len(set(keys)) == len(keys) for keys in found), "each draw has a seed of its own"


def test_families_that_are_too_slow_become_rare(tmp_path: Path) -> None:
    sampler = opened(tmp_path)
    keys = go_on(sampler, 40)
    assert sum(key.startswith(("ngram", "cnn")) for key in keys[20:]) > 12


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def missing(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'", name="optuna")
        return imported(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        CompressError, match=r"needs the package optuna; install it with pip install 'compress\[search\]'"
    ):
        import_optuna()
