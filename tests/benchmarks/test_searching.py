"""What the benchmark of searches compares a search with: random shapes and committed recipes, in the same time."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from compress.searching.exploration import Exploration
from compress.searching.space import ShapeSampler, committed, space_for
from compress.searching.trials import LAST, SearchBudget
from tests.searching.test_exploration import Desk, explored
from tests.searching.test_space import MINILM
from tests.support import REPOSITORY

SPACE = space_for(MINILM)


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import searching

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return searching


def trained(script: Any, desk: Desk, shapes: Any, budget: SearchBudget, folder: Path) -> Exploration:
    sampler = ShapeSampler(folder / "sampler.json", SPACE, 0)
    found = Exploration(budget, sampler, desk, desk)  # type: ignore[arg-type]
    script.train_whole(found, shapes)
    return found


def test_recipes_are_what_the_search_begins_with(script: Any, tmp_path: Path) -> None:
    found = explored(tmp_path, Desk(limit_s=90.0), SearchBudget(max_accuracy_drop=1.0))
    begun = script.beginnings(found)
    assert [trial.shape.family for trial in begun["recipes"].judged] == ["cnn", "transformer", "ngram", "bilstm"]
    assert [trial.shape.family for trial in begun["cnn"].judged] == ["cnn"]
    assert all([one.rung for one in trial.rungs] == [LAST] for trial in begun["recipes"].trials)
    assert all(len(trial.rungs) == 2 for trial in found.whole), "the search itself is as it was"


def test_a_training_that_ends_too_late_does_not_count(script: Any, tmp_path: Path) -> None:
    desk = Desk(limit_s=25.0)  # each takes 9
    shapes = iter(committed(SPACE)[:3])
    found = trained(script, desk, shapes, SearchBudget(max_accuracy_drop=1.0), tmp_path)
    assert [trial.is_complete for trial in found.trials] == [True, True, False]
    assert {rung for _, rung in desk.work} == {LAST} and len(desk.work) == 3


def test_random_shapes_within_the_limits_are_trained_whole_and_once(script: Any, tmp_path: Path) -> None:
    shapes = list(islice(script.random_shapes(SPACE, 3), 60))
    assert {shape.family for shape in shapes} == set(SPACE) and {shape.precision for shape in shapes} == {
        "fp32",
        "int8",
    }
    desk = Desk(limit_s=1000.0)
    found = trained(script, desk, iter([*shapes, *shapes]), SearchBudget(min_speedup=100.0), tmp_path)
    assert len(found.trials) == len({shape.key for shape in shapes})
    assert [bool(trial.rungs) for trial in found.trials] == [trial.timing.speedup >= 100 for trial in found.trials]
    assert all(trial.is_complete for trial in found.judged)
