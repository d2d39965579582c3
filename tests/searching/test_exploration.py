"""The order of timing and training, with trainings that take no time: who is trained, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.errors import CompressError
from compress.searching.exploration import Exploration
from compress.searching.space import PRECISIONS, Shape, ShapeSampler, committed, space_for
from compress.searching.trials import LAST, RUNGS, SearchBudget, ShapeTiming, TrainedRung, ValidationScore, choose
from tests.searching.test_space import MINILM

SPEEDS = {"ngram": 400.0, "cnn": 250.0, "bilstm": 60.0, "transformer": 12.0, "pruned": 6.0}
POINTS = {"ngram": -8.0, "cnn": -4.0, "bilstm": -1.5, "transformer": -0.3, "pruned": -0.2}
TEACHER = 0.93


@dataclass
class Desk:
    """Stands in for trainer and clock; ``seconds`` are those of a whole training of each family."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    unbuildable: str = ""
    foreseen: bool = False
    failing: tuple[str, int] | None = None  # a family whose trainings of a rung fail
    failed: set[str] = field(default_factory=set)
    lost_s: float = 0.0  # which a failing training takes
    grows: int = 1  # how many times as large students are when they are trained
    stop: Callable[[Shape, int], bool] = lambda shape, rung: False
    timed: dict[str, ShapeTiming] = field(default_factory=dict)
    done: dict[tuple[str, int], TrainedRung] = field(default_factory=dict)
    work: list[tuple[str, int]] = field(default_factory=list)  # trainings, in order
    validation: Any = field(
        default_factory=lambda: SimpleNamespace(metric=SimpleNamespace(name="accuracy"), teacher_value=TEACHER)
    )
    begun: dict[tuple[str, int], float] = field(default_factory=dict)  # the share of trainings that were killed
    marks: dict[str, float] = field(default_factory=dict)
    late: float = 1.0  # how many times as long as expected the last rung takes
    spent_s: float = 0.0
    limit_s: float = float("inf")

    def known_timing(self, shape: Shape) -> ShapeTiming | None:
        return self.timed.get(shape.key)

    def time(self, shape: Shape) -> ShapeTiming:
        values = [value if isinstance(value, int) else 9 * len(str(value)) for value in shape.options.values()]
        size = 1 + sum(values) % 97 / 97
        speed = SPEEDS[shape.family] / size * (1 if shape.precision == "fp32" else 2)
        timing = ShapeTiming(10 / speed, speed, speed / 1.02, speed * 1.02, int(4e6 * size), 10.0)
        if self.unbuildable == shape.family:
            timing = ShapeTiming(fault="no such tokenizer")
        return self.timed.setdefault(shape.key, timing)

    def expected_seconds(self, shape: Shape, latency_ms: float) -> float:
        return self.seconds.get(shape.family, 9.0) * RUNGS[0] if self.foreseen else 0.0

    def known(self, shape: Shape) -> list[TrainedRung]:
        return [self.done[shape.key, rung] for rung in range(len(RUNGS)) if (shape.key, rung) in self.done]

    def train(self, shape: Shape, rung: int) -> TrainedRung:
        assert (shape.key, rung) not in self.done, "it was finished before"
        if self.stop(shape, rung):
            raise KeyboardInterrupt
        if self.failing == (shape.family, rung):
            self.failed.add(shape.family)
            self.spent_s += self.lost_s
        if shape.family in self.failed:
            raise CompressError("diverged")
        points = POINTS[shape.family] - (LAST - rung) - len(shape.name) % 7 / 10
        taken = self.seconds.get(shape.family, 9.0) * RUNGS[rung] * (self.late if rung == LAST else 1.0)
        taken *= 1 - self.begun.get((shape.family, rung), 0.0)
        self.spent_s += 0.0 if self.is_trained(shape, rung) else taken
        self.work.append((shape.family, rung))
        judged = ValidationScore(TEACHER + points / 100, points, points - 0.5, points + 0.5)
        found = TrainedRung(
            rung, int(9000 * RUNGS[rung]), taken, taken, self.grows * self.timed[shape.key].size_bytes, judged
        )
        self.done[shape.key, rung] = found
        return found

    def fault(self, shape: Shape) -> str:
        return "diverged" if shape.family in self.failed else ""

    def is_trained(self, shape: Shape, rung: int) -> bool:
        return any(
            replace(shape, precision=one).key == key and at == rung for one in PRECISIONS for key, at in self.done
        )

    def taken_share(self, shape: Shape, rung: int) -> float:
        return self.begun.get((shape.family, rung), 0.0)

    def steps(self, shape: Shape, rung: int) -> int:
        return int(9000 * RUNGS[rung])

    def left_s(self, share: float = 1.0, begun_s: float = 0.0) -> float:
        return begun_s + share * (self.limit_s - begun_s) - self.spent_s

    def mark(self, name: str) -> float:
        return self.marks.setdefault(name, self.spent_s)


def explored(folder: Path, desk: Desk, budget: SearchBudget, trials: int | None = None) -> Exploration:
    sampler = ShapeSampler(folder / "sampler.json", space_for(MINILM), 0)
    clock: Any = desk
    found = Exploration(replace(budget, trials=trials), sampler, desk, clock)  # type: ignore[arg-type]
    found.run()
    return found


def test_a_shape_that_misses_a_limit_is_never_trained(tmp_path: Path) -> None:
    desk = Desk()
    found = explored(tmp_path, desk, SearchBudget(min_speedup=100), trials=6)
    assert {family for family, _ in desk.work} <= {"ngram", "cnn"}
    for trial in found.trials:
        slow = trial.timing.speedup < 100
        assert slow == (not trial.rungs) == trial.ended.startswith("too slow: ×")
    assert any(trial.timing.speedup < 100 for trial in found.trials)
    assert "where ×100 was asked" in next(trial.ended for trial in found.trials if not trial.rungs)


def test_trials_bound_what_is_trained_and_a_third_goes_on(tmp_path: Path) -> None:
    desk = Desk()
    found = explored(tmp_path, desk, SearchBudget(min_speedup=30), trials=9)
    begun = [(family, rung) for family in ("cnn", "ngram", "bilstm") for rung in (0, LAST)]
    assert desk.work[:6] == begun and "transformer" not in dict(desk.work)  # which is too slow
    by_rung = [sum(rung == number for _, rung in desk.work[6:]) for number in range(len(RUNGS))]
    assert by_rung[0] == 6 and by_rung[1] == 2 and 1 <= by_rung[2] <= 2  # and the winner, if it was not among them
    assert sum(trial.ended == "stopped at rung 1" for trial in found.trials) == 4
    assert all(trial.ended == "done" for trial in found.judged if trial.is_complete)


def test_nothing_that_meets_the_limits_ends_the_search(tmp_path: Path) -> None:
    desk = Desk()
    found = explored(tmp_path, desk, SearchBudget(min_speedup=1e6), trials=3)
    assert not desk.work and len(found.trials) == 30 and not found.judged


def test_the_winner_is_trained_to_the_end(tmp_path: Path) -> None:
    desk = Desk()
    found = explored(tmp_path, desk, SearchBudget(max_accuracy_drop=3.0), trials=8)
    within = [trial for trial in found.judged if trial.score.points >= -3.0]
    assert max(within, key=lambda trial: trial.timing.speedup).is_complete


def test_a_shape_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    found = explored(tmp_path, Desk(unbuildable="ngram"), SearchBudget(), trials=4)
    failed = [trial for trial in found.trials if trial.shape.family == "ngram"]
    assert failed and all(trial.ended == "cannot be built: no such tokenizer" and not trial.rungs for trial in failed)


@pytest.mark.parametrize("limit", [8.0, 45.0, 90.0])
def test_the_time_limit_is_kept(limit: float, tmp_path: Path) -> None:
    desk = Desk(limit_s=limit, foreseen=True)
    found = explored(tmp_path, desk, SearchBudget(min_speedup=30))
    assert desk.spent_s <= limit + 1e-6
    whole = 3 if limit > 30 else 0  # of the committed students, each in nine seconds
    assert [rung for _, rung in desk.work[: 2 * whole]] == whole * [0, LAST]
    assert any(trial.is_complete for trial in found.judged) == bool(whole)
    rungs = [rung for _, rung in desk.work[2 * whole :]]
    first = next((place for place, rung in enumerate(rungs) if rung), len(rungs))
    assert first == pytest.approx((limit - 10 * whole) / 3, abs=1)  # each takes a second
    assert len(found.trials) <= 3 * len(found.judged) + 40, "what there is no time for is not asked for on and on"


def test_ten_answers_that_take_too_long_with_no_training_between_end_the_first_rung(tmp_path: Path) -> None:
    def shapes(family: str) -> list[Shape]:
        values = space_for(MINILM)[family]
        return [Shape(family, dict(zip(values, one, strict=True))) for one in product(*values.values())]

    slow, quick = shapes("transformer"), shapes("cnn")
    answers = [quick[0], *slow[:9], quick[1], *9 * slow[9:10], *9 * quick[:1], slow[10], quick[2]]
    asked: list[Shape] = []

    def ask() -> tuple[None, Shape]:
        asked.append(answers[len(asked)])
        return None, asked[-1]

    desk = Desk(seconds={"transformer": 9000.0}, limit_s=300.0, foreseen=True)
    sampler = SimpleNamespace(ask=ask, tell=lambda *_: None)
    found = Exploration(SearchBudget(), sampler, desk, desk)  # type: ignore[arg-type]
    train = found._train
    # What is trained, and no further for want of time, is asked for again: that says nothing of new shapes.
    found._train = lambda trial, *more: (train(trial, *more), setattr(trial, "refused", "more"))[0]  # type: ignore
    found._first_rung(0.0)
    assert asked == answers[:-1] and len(found.judged) == 2


def test_a_training_that_would_end_too_late_is_not_begun(tmp_path: Path) -> None:
    desk = Desk(seconds={"transformer": 900.0}, limit_s=50.0)
    found = explored(tmp_path, desk, SearchBudget(max_accuracy_drop=2.5))
    first_s = 100  # for which nothing is known of a rung before
    assert desk.spent_s <= 50 + first_s
    assert ("transformer", LAST) not in desk.work
    told = [trial.ended for trial in found.judged if trial.shape.family == "transformer"]
    assert any("more steps would take about" in ended and "were left" in ended for ended in told)


def test_a_first_rung_that_takes_too_long_is_not_begun(tmp_path: Path) -> None:
    desk = Desk(seconds={"transformer": 900.0}, limit_s=50.0, foreseen=True)
    found = explored(tmp_path, desk, SearchBudget(max_accuracy_drop=2.5))
    slow = [trial for trial in found.trials if trial.shape.family == "transformer"]
    assert slow and not any(trial.rungs for trial in slow) and desk.spent_s <= 50
    assert slow[0].ended.startswith("not trained: the first steps would take about 2 min, and ")


@pytest.mark.parametrize("budget", [{}, {"max_accuracy_drop": 1.0}, {"max_accuracy_drop": 20.0}, {"min_speedup": 5.0}])
def test_time_that_is_left_goes_to_what_may_win_yet(budget: dict[str, float], tmp_path: Path) -> None:
    desk = Desk(seconds={"bilstm": 30.0, "transformer": 900.0}, limit_s=200.0, foreseen=True)
    found = explored(tmp_path, desk, SearchBudget(**budget))
    winner = choose(found.judged, found.budget)
    least = winner.timing.speedup if "max_accuracy_drop" in budget and winner else 0.0
    waiting = [trial for trial in found.judged if not trial.is_complete and trial.timing.speedup > least]
    assert all(trial.seconds_for(9000) > desk.left_s() for trial in waiting)
    assert any(trial.is_complete for trial in found.judged) and (not waiting or desk.spent_s > 190)


@pytest.mark.parametrize("rung", [0, 1])
def test_a_training_that_fails_ends_its_student_alone(rung: int, tmp_path: Path) -> None:
    desk = Desk(failing=("cnn", rung))
    found = explored(tmp_path, desk, SearchBudget(min_speedup=100), trials=8)
    failed = [trial for trial in found.trials if trial.refused]
    assert failed and {trial.shape.family for trial in failed} == {"cnn"}
    said = "more steps failed: diverged" if rung else "not trained: the first steps failed: diverged"
    assert all(trial.ended.endswith(said) for trial in failed)
    assert any(trial.is_complete for trial in found.judged)


def test_a_student_that_came_out_too_large_is_not_promoted(tmp_path: Path) -> None:
    desk = Desk(grows=3)
    found = explored(tmp_path, desk, SearchBudget(max_size_mb=20.0), trials=8)
    assert {rung for _, rung in desk.work} == {0, 1, 2}
    assert all("too large" in t.ended for t in found.judged if t.timing.size_bytes > 20e6)
    large = Desk(grows=10)
    (tmp_path / "large").mkdir()
    found = explored(tmp_path / "large", large, SearchBudget(max_size_mb=20.0), trials=8)
    assert {rung for _, rung in large.work} == {0} and all("too large" in trial.ended for trial in found.judged)


def test_the_other_precision_of_a_trained_shape_takes_no_time(tmp_path: Path) -> None:
    desk = Desk(limit_s=45.0)
    found = explored(tmp_path, desk, SearchBudget(min_speedup=30))
    trial = found.judged[0]
    other = replace(trial.shape, precision="fp32" if trial.shape.precision == "int8" else "int8")
    twin = found._add(other, desk.time(other))
    desk.spent_s = desk.limit_s / 3
    assert not found._seconds_for(twin, 0) and found._train(twin, 0)


def test_time_that_is_left_is_searched_again(tmp_path: Path) -> None:
    # 40 of them for committed students; the pruned teacher takes most of the first rung, and is too slow for more.
    desk = Desk(seconds={"pruned": 270.0}, limit_s=160.0, foreseen=True)
    ngram = next(shape for shape in committed(space_for(MINILM)) if shape.family == "ngram")
    desk.timed[ngram.key] = ShapeTiming(1e-4, 1e5, 1e5, 1e5, 1000, 10.0)  # so that none that is faster waits
    found = explored(tmp_path, desk, SearchBudget(max_accuracy_drop=20.0))
    rounds = list(desk.marks.values())
    assert rounds[0] == 40 and len(rounds) > 2 and 150 < desk.spent_s <= 160
    assert len(found.judged) > 4 + 1 + 10, "the first round has 40 seconds, 30 of them for the pruned teacher"


def test_a_search_that_was_stopped_in_a_later_round_goes_on_there(tmp_path: Path) -> None:
    desk = Desk(seconds={"pruned": 270.0}, limit_s=160.0, foreseen=True)
    ngram = next(shape for shape in committed(space_for(MINILM)) if shape.family == "ngram")
    desk.timed[ngram.key] = ShapeTiming(1e-4, 1e5, 1e5, 1e5, 1000, 10.0)
    desk.stop = lambda shape, rung: len(desk.marks) == 2
    with pytest.raises(KeyboardInterrupt):
        explored(tmp_path, desk, SearchBudget(max_accuracy_drop=20.0))
    before = desk.spent_s
    desk.stop = lambda shape, rung: False
    explored(tmp_path, desk, SearchBudget(max_accuracy_drop=20.0))
    assert before < 150 < desk.spent_s <= 160


def test_a_pruned_teacher_takes_the_steps_that_it_takes(tmp_path: Path) -> None:
    found = explored(tmp_path, Desk(), SearchBudget(), trials=5)
    pruned = next(trial for trial in found.judged if trial.shape.is_pruned)
    first = found._seconds_for(pruned, LAST)
    found.trainer.steps = lambda shape, rung: pruned.last.steps  # type: ignore[method-assign]
    pruned.rungs, found.trainer.done = pruned.rungs[:1], {}  # type: ignore[attr-defined]
    assert first == 0 and found._seconds_for(pruned, LAST) == pytest.approx(pruned.last.seconds)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_trials_are_committed_students(count: int, tmp_path: Path) -> None:
    desk = Desk()
    explored(tmp_path, desk, SearchBudget(), trials=count)
    assert desk.work == [(family, rung) for family in ("cnn", "transformer", "ngram")[:count] for rung in (0, LAST)]


def test_committed_students_are_whole_and_the_pruned_teacher_is_not(tmp_path: Path) -> None:
    found = explored(tmp_path, Desk(), SearchBudget(max_accuracy_drop=1.0), trials=7)
    assert any(trial.is_complete and trial.shape.is_pruned for trial in found.judged)
    assert [trial.shape for trial in found.whole] == found.committed
    again = explored(tmp_path, desk := Desk(timed=dict(found.trainer.timed), done=dict(found.trainer.done)),
                     SearchBudget(max_accuracy_drop=1.0), trials=7)  # fmt: skip
    assert not desk.work and [t.row for t in again.trials] == [t.row for t in found.trials]


def test_a_search_whose_time_is_over_knows_what_it_trained(tmp_path: Path) -> None:
    desk = Desk(limit_s=46.0, late=1.2)
    first = explored(tmp_path, desk, SearchBudget(max_accuracy_drop=2.0))
    assert desk.spent_s > desk.limit_s and len(first.judged) == 4
    again = explored(tmp_path, desk, SearchBudget(max_accuracy_drop=2.0))
    assert [t.row for t in again.trials] == [t.row for t in first.trials]


def test_a_committed_student_that_fails_late_leaves_the_rest_of_the_time_to_others(tmp_path: Path) -> None:
    desk = Desk(seconds={"transformer": 45.0}, limit_s=100.0, failing=("transformer", LAST), lost_s=45.0)
    found = explored(tmp_path, desk, SearchBudget(max_accuracy_drop=2.0))
    assert 90 < desk.spent_s <= 100 and len(found.judged) > 4


def test_a_training_that_was_killed_takes_the_rest_of_its_time(tmp_path: Path) -> None:
    desk = Desk(seconds={"transformer": 90.0}, limit_s=40.0, begun={("transformer", LAST): 0.9})
    explored(tmp_path, desk, SearchBudget(max_accuracy_drop=1.0))
    assert ("transformer", LAST) in desk.work and desk.spent_s <= 40


def test_the_other_precision_of_a_committed_student_is_as_whole(tmp_path: Path) -> None:
    desk = Desk()
    found = explored(tmp_path, desk, SearchBudget(), trials=4)
    twin = replace(found.committed[0], precision="fp32")
    asked = [(None, twin)]
    found.sampler.ask = asked.pop  # type: ignore[assignment, method-assign]
    found.sampler.tell = lambda *_: None  # type: ignore[assignment, method-assign]
    found.budget = replace(found.budget, trials=5)
    found._first_rung(0.0)
    assert [one.rung for one in found.trials[-1].rungs] == [0, LAST] and found.trials[-1] in found.whole


@pytest.mark.parametrize("last", [(0, 2), (0, 4), (0, 6), (1, 0), (1, 1), (2, 0), (2, 3)])
def test_after_a_stop_nothing_is_trained_again(last: tuple[int, int], tmp_path: Path) -> None:
    budget, rung, before = SearchBudget(min_speedup=30), *last
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = Desk()
    expected = explored(tmp_path / "whole", whole, budget, trials=7)

    desk = Desk(stop=lambda shape, at: at == rung and sum(one == rung for _, one in desk.work) == before)
    with pytest.raises(KeyboardInterrupt):
        explored(tmp_path / "stopped", desk, budget, trials=7)
    desk.stop = lambda shape, at: False
    found = explored(tmp_path / "stopped", desk, budget, trials=7)
    assert desk.work == whole.work and [t.row for t in found.trials] == [t.row for t in expected.trials]
