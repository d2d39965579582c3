"""A search joins students and the teacher into a cascade where that is faster than the best student alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.cascades import cascade as cascade_stage
from compress.evaluation.metrics import ACCURACY
from compress.inference.compute import Compute
from compress.inference.runners import Speed
from compress.models.model_dir import CascadeDir, Model, open_model
from compress.searching import search as search_module
from compress.searching.making import ValidationRows
from compress.searching.search import BEST, TEACHER, Joined, _of_front, deploy, join
from compress.searching.space import Shape
from compress.searching.trials import SearchBudget, ShapeTiming, TrainedRung, Trial, ValidationScore
from tests.cascades.test_cascade import labelled, members, texts

SPEEDUPS = {"fast": 50.0, "middle": 20.0, TEACHER: 4.0}  # over the teacher in torch, which takes 10 ms
SHAPES = {name: Shape("cnn", {"filters": size}) for name, size in (("fast", 25), ("middle", 50))}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return an exploration whose students are like the teacher, but for rows that they are unsure of."""
    folder = tmp_path_factory.mktemp("models")
    students = dict(zip(("fast", "middle"), members(folder)[:2], strict=True))
    teacher = Model.open(folder / "exact-torch")
    validation = ValidationRows(teacher, labelled(teacher, texts(400)), ACCURACY, 1, 0)
    judged = []
    for number, (name, model) in enumerate(students.items(), 1):
        score = validation.judge(validation.predicted(model.path))
        timing = ShapeTiming(10 / SPEEDUPS[name], SPEEDUPS[name], SPEEDUPS[name], SPEEDUPS[name], 1000, 10.0)
        judged.append(Trial(number, SHAPES[name], timing, [TrainedRung(2, 10, 1.0, 1.0, 1000, score)]))
    places = {SHAPES[name].key: model.path for name, model in students.items()}
    trainer = SimpleNamespace(
        teacher=teacher,
        validation=validation,
        compute=Compute("cpu", 1),
        deployed=lambda shape, rung: places[shape.key],
    )

    def explored(**budget: float) -> Any:
        return SimpleNamespace(budget=SearchBudget(**budget), judged=judged, whole=judged, trainer=trainer)

    return explored


@pytest.fixture(autouse=True)
def without_stopwatch(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {shape.name: name for name, shape in SHAPES.items()} | {TEACHER: TEACHER}

    def times(directories: Mapping[str, Path], rows: Any, **options: Any) -> list[Speed]:
        return [Speed(name, "onnxruntime", 1, 1, 7 / SPEEDUPS[names[name]], 1, 1, 1) for name in directories]

    monkeypatch.setattr(cascade_stage, "time_side_by_side", times)


def test_a_cascade_meets_what_no_student_meets(made: Any, tmp_path: Path) -> None:
    explored = made(max_accuracy_drop=1.0)
    assert all(one.score.points < -1 for one in explored.judged)
    joined = join(explored, tmp_path, None)
    assert joined is not None and joined.model.member_names[-1] == TEACHER and joined.score.points >= -1
    answered = joined.row["answered"]
    first = SPEEDUPS["fast"] if joined.students[0].shape == SHAPES["fast"] else SPEEDUPS["middle"]
    assert len(answered) == len(joined.students) + 1 and 4 < joined.timing.speedup < first
    reached = [1.0, *(1 - sum(answered[: number + 1]) for number in range(len(answered) - 1))]
    costs = [1 / one.timing.speedup for one in joined.students] + [1 / SPEEDUPS[TEACHER]]
    expected = 1 / sum(share * cost for share, cost in zip(reached, costs, strict=True))
    assert joined.timing.speedup == pytest.approx(expected, rel=1e-6)
    assert joined.timing.latency_ms == pytest.approx(10 / expected, rel=1e-6)
    deploy(joined.model.path, tmp_path / BEST, None, {})
    best = open_model(tmp_path / BEST)
    assert isinstance(best, CascadeDir) and best.name == BEST and best.thresholds == joined.model.thresholds


def trials_with(speeds: Mapping[int, float], complete: set[int]) -> list[Trial]:
    """Return trials by number, each better than the faster ones."""
    found = []
    for number, speed in speeds.items():
        score = ValidationScore(0.9 - speed / 1e4, 0.0, 0.0, 0.0)
        rung = TrainedRung(2 if number in complete else 0, 10, 1.0, 1.0, 1000, score)
        timing = ShapeTiming(1.0, speed, speed, speed, 1000, 10.0)
        found.append(Trial(number, Shape("cnn", {"filters": number}), timing, [rung]))
    return found


def test_members_are_first_those_that_were_trained_whole() -> None:
    speeds = {number: 100.0 * number for number in range(1, 8)}
    chosen = [one.number for one in _of_front(trials_with(speeds, {2, 5, 6}))]
    assert len(chosen) == 4 and {2, 5, 6} < set(chosen) and chosen == sorted(chosen, reverse=True)
    assert [one.number for one in _of_front(trials_with(speeds, set(range(1, 8))))] == [7, 5, 3, 1]
    assert [one.number for one in _of_front(trials_with(speeds, set()))] == [7, 5, 3, 1]


def test_committed_students_that_a_long_front_leaves_out_are_joined_too(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "_of_front", lambda judged: judged)
    explored = made(max_accuracy_drop=1.0)
    fast, middle = explored.judged

    def speedup(front: list[Trial], whole: list[Trial]) -> float:
        explored.judged, explored.whole = front, whole
        (place := tmp_path / f"{front[0].number}-{whole[0].number}").mkdir()
        joined = join(explored, place, None)
        return 0.0 if joined is None else joined.timing.speedup

    alone = [speedup([one], [one]) for one in (fast, middle)]
    assert alone[0] != alone[1] and speedup([fast], [middle]) == speedup([middle], [fast]) == max(alone)


def test_a_faster_student_is_not_replaced(made: Any, tmp_path: Path) -> None:
    explored = made(max_accuracy_drop=30.0)
    assert join(explored, tmp_path, explored.judged[0]) is None


@pytest.mark.parametrize("budget", [{}, {"min_speedup": 2.0}, {"max_accuracy_drop": 1.0, "max_latency_ms": 5.0}])
def test_only_the_fastest_within_a_drop_may_be_a_cascade(budget: dict[str, float], made: Any, tmp_path: Path) -> None:
    assert join(made(**budget), tmp_path, None) is None
    assert not [*tmp_path.iterdir()]


def test_other_limits_hold_for_cascades_too(made: Any, tmp_path: Path) -> None:
    assert isinstance(join(made(max_accuracy_drop=1.0, min_speedup=4.1), tmp_path, None), Joined)
    assert join(made(max_accuracy_drop=1.0, min_speedup=60.0), tmp_path, None) is None
    assert join(made(max_accuracy_drop=1.0, max_size_mb=0.001), tmp_path, None) is None


def test_no_cascade_is_no_error(made: Any, tmp_path: Path) -> None:
    assert join(made(max_accuracy_drop=0.0), tmp_path, None) is None
