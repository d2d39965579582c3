"""The search itself: time shapes, train those that may meet the budget, promote the best, train the winner to the end.

The committed students come first, whole: a search that has time for nothing else ends with what they are worth. Of the
rest of the time a third goes to the first rung, as successive halving divides it among three; where time is left at the
end, it begins again with a third of that. Trainings that would exceed the time limit are not started, and the time of
the last rung for the best student is reserved in the second. A student whose training fails is trained no further.
"""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from compress.benchmarking.results.formatting import plural, points, shown, times, with_span
from compress.errors import CompressError
from compress.models.manifest import keep, kept
from compress.progress import duration, logger
from compress.searching.making import Trainer
from compress.searching.space import PRECISIONS, Shape, ShapeSampler, committed
from compress.searching.trials import (
    LAST,
    RUNGS,
    SearchBudget,
    ShapeTiming,
    TrainedRung,
    Trial,
    choose,
    floor,
    front_of,
    objectives,
    promoted,
    promotion_order,
)

TIMED_FOR_EACH = 10  # shapes that are timed at most, for each that may be trained
FIRST_SHARE = 1 / len(RUNGS)  # of the time, for the first rung
MARGIN = 1.2  # for a training that may take longer than the rung below says
REPEATS = 50  # of known shapes one after another, after which there is nothing new to find
MOST_SLOW = 10  # answers whose first steps take too long, with no training between, after which none is sought
SAVED_EVERY_S = 5.0


class SearchClock(threading.Thread):
    """Counts seconds towards a limit over all starts of a search, in a ``with`` block; ``path`` keeps them.

    They are kept where the process is killed too: a training that is killed goes on where it was.
    """

    def __init__(self, path: Path, limit_s: float) -> None:
        super().__init__(daemon=True)
        self.path, self.limit_s, self._over = path, limit_s, threading.Event()
        before_s, self.marks = kept(path, (0.0, {}))
        self._begun_s = time.monotonic() - before_s

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(SAVED_EVERY_S)
            keep(self.path, (round(self.spent_s, 1), {**self.marks}))

    @property
    def spent_s(self) -> float:
        return float(time.monotonic() - self._begun_s)

    def left_s(self, share: float = 1.0, begun_s: float = 0.0) -> float:
        """Return the seconds that are left of a share of the time after ``begun_s``, below 0 where it is over."""
        return begun_s + share * (self.limit_s - begun_s) - self.spent_s

    def mark(self, name: str) -> float:
        """Return the seconds that were spent when this was asked first, also by an earlier start."""
        return float(self.marks.setdefault(name, round(self.spent_s, 1)))


@dataclass
class Exploration:
    """A search under way. ``trials`` are the shapes that were tried, in order."""

    budget: SearchBudget
    sampler: ShapeSampler
    trainer: Trainer
    clock: SearchClock
    trials: list[Trial] = field(default_factory=list)

    @property
    def judged(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.rungs]

    @cached_property
    def committed(self) -> list[Shape]:
        return [shape for shape in committed(self.sampler.space) if not shape.is_pruned]

    @property
    def whole(self) -> list[Trial]:
        """The trials of committed students that were trained for all steps at once, in either precision."""
        shapes = [replace(shape, precision=precision) for shape in self.committed for precision in PRECISIONS]
        return [t for t in self.trials if t.shape in shapes and [one.rung for one in t.rungs] == [0, LAST]]

    def run(self) -> None:
        """Go through all rungs; what an earlier start has finished is not repeated."""
        for shape in [*self.committed, *self.sampler.told()]:
            timing = self.trainer.known_timing(shape)
            if timing is not None and self._known(shape) is None:
                self._add(shape, timing)
        self._train_committed()
        number = max(1, len(self.clock.marks))  # the round in which an earlier start was
        while self._round(number) and math.isfinite(self.clock.limit_s):
            number += 1

    def _round(self, number: int) -> bool:
        """Try new shapes in a third of what is left, and promote the best; return whether anything was trained."""
        before = sum(len(trial.rungs) for trial in self.trials)
        self._first_rung(self.clock.mark(f"round {number}"))
        for rung in range(1, LAST + 1):
            self._next_rung(rung)
        self._train_winner()
        self._use_what_is_left()
        return sum(len(trial.rungs) for trial in self.trials) > before

    def _train_committed(self) -> None:
        """Train the committed students for all steps, by way of the first rung, in which all students compare.

        One that will not end in time waits for its turn in the first rung.
        """
        for shape in self.committed:
            if len(self.judged) >= self._wanted or self.clock.left_s() <= 0:
                return
            trial = self._known(shape) or self._timed(shape)
            in_time = self._seconds_for(trial, 0) * (1 + RUNGS[LAST] / RUNGS[0]) <= self.clock.left_s()
            if not trial.rungs and not trial.missed and in_time:
                self._train(trial, 0)
            if trial.rungs and not trial.missed and not trial.is_complete:
                self._train(trial, LAST)

    def _first_rung(self, begun_s: float) -> None:
        repeats, slow, wanted = 0, 0, self._wanted
        while len(self.judged) < wanted and len(self.trials) < wanted * TIMED_FOR_EACH and repeats < REPEATS:
            left_s = self.clock.left_s(FIRST_SHARE, begun_s)
            if left_s <= 0 or slow == MOST_SLOW:
                return
            asked, shape = self.sampler.ask()
            known = self._known(shape)
            trial = known or self._timed(shape)
            begun = False
            if not trial.missed and not trial.rungs and not trial.refused:
                # The first rung does not take what the others need; but nothing is left to them without a student.
                begun = self._train(trial, 0, left_s if self.judged else None)
            if trial.rungs and not trial.is_complete and self.trainer.is_trained(shape, LAST):
                self._train(trial, LAST)  # the other precision of one that is trained
            repeats = repeats + 1 if known else 0
            slow = 0 if begun else slow + bool(trial.refused and not trial.rungs and not self.trainer.fault(shape))
            excess, values = {**self.budget.excess(trial.timing), "fault": float(not trial.rungs)}, None
            if trial.rungs:
                first = trial.rungs[0].score.value
                values = objectives(trial)[0], first
                # In points, which weigh as doublings do.
                least = self._floor([one.rungs[0].score.value for one in self.judged])
                excess["max_accuracy_drop"] = 100 * max(0.0, least - first)
            self.sampler.tell(asked, values, excess)

    @property
    def _wanted(self) -> int:
        return self.budget.trials or 2**31

    def _floor(self, values: Sequence[float]) -> float:
        """Return the least metric of the students of a rung with which one may come within an accuracy drop."""
        return floor(values, self.trainer.validation.teacher_value, self.budget.max_accuracy_drop)

    def _known(self, shape: Shape) -> Trial | None:
        return next((trial for trial in self.trials if trial.shape.key == shape.key), None)

    def _timed(self, shape: Shape) -> Trial:
        trial = self._add(shape, self.trainer.time(shape))
        said = "; ".join(trial.missed) or with_span(trial.timing.interval, times)
        logger.info("%d: %s: %s", trial.number, shape.name, said)
        return trial

    def _add(self, shape: Shape, timing: ShapeTiming) -> Trial:
        trial = Trial(len(self.trials) + 1, shape, timing)
        trial.missed = [f"cannot be built: {timing.fault}"] if timing.fault else self.budget.faults(timing)
        if not trial.missed:
            for known in self.trainer.known(shape):
                self._learn(trial, known)
            if fault := self.trainer.fault(shape):
                trial.refused = f"{_steps(trial)} failed: {fault}"
        self.trials.append(trial)
        return trial

    def _learn(self, trial: Trial, trained: TrainedRung) -> None:
        """Add what is known of a rung; by the size that it has with its whole vocabulary it may miss a limit."""
        trial.add(trained)
        trial.missed = self.budget.faults(trial.timing)

    def _next_rung(self, rung: int) -> None:
        whole = self.whole  # they compare, but take no place
        ranked = self._ranked([trial for trial in self.judged if not trial.missed], rung - 1)
        least = self._floor([value for _, value in ranked])
        waiting = [(trial, value) for trial, value in ranked if trial not in whole]
        places = left = promoted(len(waiting))
        set_aside = 0.0
        for place, (trial, value) in enumerate(waiting):
            # Where one takes too long the next one has its place, but not if it is out of reach.
            if left == 0 or place >= places and value < least:
                return
            to_the_end = MARGIN * self._seconds_for(trial, LAST) if rung < LAST else 0.0
            if trial.last.rung >= rung or self._train(trial, rung, self.clock.left_s() - (set_aside or to_the_end)):
                set_aside = set_aside or to_the_end
                left -= 1

    def _train_winner(self) -> None:
        """Train the winner to the end, and what wins then."""
        while trial := choose(self.judged, self.budget):
            # Where all of its steps take too long, as many as there is time for.
            if not any(self._train(trial, rung) for rung in range(LAST, trial.last.rung, -1)):
                return

    def _use_what_is_left(self) -> None:
        """Where time is left, train what may win yet to the end, the most promising first."""
        while math.isfinite(self.clock.limit_s):
            winner, fastest_wins = choose(self.judged, self.budget), self.budget.max_accuracy_drop is not None
            least = winner.timing.speedup if fastest_wins and winner else 0.0
            able = [t for t in self.judged if not t.missed and not t.is_complete and t.timing.speedup > least]
            if not any(self._train(trial, LAST) for trial, _ in self._ranked(able, 0)):
                return

    def _ranked(self, trials: Sequence[Trial], rung: int) -> list[tuple[Trial, float]]:
        """Return those that were trained for a rung with their metric at it, the first to be promoted first."""
        there = [(trial, value) for trial in trials if (value := trial.value_at(rung)) is not None]
        figures = [(objectives(trial)[0], value) for trial, value in there]
        least = self._floor([value for _, value in there])
        return [there[index] for index in promotion_order(figures, least, metric_wins=self.budget.metric_wins)]

    def _train(self, trial: Trial, rung: int, left_s: float | None = None) -> bool:
        """Train a trial for the steps of a rung, if that is likely to end in time; return whether it was.

        Args:
            left_s: seconds that it may take; None for all that are left.
        """
        seconds = self._seconds_for(trial, rung)
        left = self.clock.left_s() if left_s is None else left_s
        if seconds > left:
            there = duration(max(0.0, left))
            trial.refused = f"{_steps(trial)} would take about {duration(seconds)}, and {there} were left"
            return False
        logger.info("%d: training, rung %d of %d ...", trial.number, rung + 1, len(RUNGS))
        try:
            self._learn(trial, self.trainer.train(trial.shape, rung))
        except CompressError as error:
            trial.refused = f"{_steps(trial)} failed: {error}"
            logger.warning("%d: %s", trial.number, trial.refused)
            return False
        trial.refused = ""
        metric, last = self.trainer.validation.metric.name, trial.last
        value, difference = shown(last.score.value, metric), points(last.score.points)
        logger.info(
            f"{trial.number}: {metric} {value} ({difference} points) after {last.steps} steps, {last.seconds:.0f} s"
        )
        said = ", ".join(f"{times(one.timing.speedup)} {points(one.score.points)}" for one in front_of(self.judged))
        remaining = f"; {duration(max(0.0, self.clock.left_s()))} left" if math.isfinite(self.clock.limit_s) else ""
        logger.info(
            f"{plural(len(self.trials), 'shape')} timed, {len(self.judged)} trained; front (speed-up, points to the "
            f"teacher): {said}{remaining}"
        )
        return True

    def _seconds_for(self, trial: Trial, rung: int) -> float:
        """Return about how long the steps of a rung will take, as far as that is known."""
        if self.trainer.is_trained(trial.shape, rung):
            return 0.0
        if trial.rungs:
            steps = self.trainer.steps(trial.shape, rung)
            return trial.seconds_for(steps) * (1 - self.trainer.taken_share(trial.shape, rung))
        plain = self.trainer.known_timing(replace(trial.shape, precision="fp32")) or trial.timing
        return self.trainer.expected_seconds(trial.shape, plain.latency_ms)


def _steps(trial: Trial) -> str:
    return "more steps" if trial.rungs else "the first steps"
