"""The study of Optuna: what it begins with, goes on with after a stop, and learns."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from compress.errors import CompressError
from compress.searching.sampler import ShapeSampler, import_optuna
from compress.searching.space import Shape, committed, space_for
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


@pytest.mark.parametrize("stop", [1, 6, 11])
def test_a_stop_changes_nothing_of_what_follows(stop: int, tmp_path: Path) -> None:
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    sampler = opened(tmp_path / "whole")
    expected = go_on(sampler, 13)
    shapes = sampler.told()
    sampler = opened(tmp_path / "stopped")
    go_on(sampler, stop)
    sampler.ask()  # the command is killed before it tells
    sampler = opened(tmp_path / "stopped")
    assert go_on(sampler, 13 - stop) == expected[stop:]
    assert sampler.told() == shapes and [shape.key for shape in shapes] == list(dict.fromkeys(expected))


def test_seeds_differ(tmp_path: Path) -> None:
    found = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        sampler = opened(tmp_path / str(seed), seed)
        found.append(go_on(sampler, 8)[4:])
    assert found[0] != found[1]


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


def test_a_shape_is_asked_for_as_the_space_has_it(tmp_path: Path) -> None:
    sampler = opened(tmp_path)
    go_on(sampler, 12)
    assert all(isinstance(shape, Shape) for shape in sampler.told())
    for shape in sampler.told():
        assert all(value in SPACE[shape.family][name] for name, value in shape.options.items())
