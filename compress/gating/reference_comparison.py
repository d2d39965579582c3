"""Compare results with reference results: quality across hosts, speed on the same host only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from compress.benchmarking.results import verdict
from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import in_points, times
from compress.benchmarking.results.schema import Measurement
from compress.evaluation.metrics import paired_difference
from compress.gating.budgets import Tolerance
from compress.gating.gate_verdict import UNDECIDED, Change, Figures, Judgement, Limit, lost, subjects
from compress.gating.limits import ONE_MODEL, as_loss
from compress.inference.speedup_intervals import divided
from compress.tasks import metrics_by_name

_SAME_MODEL = attrgetter("metric_name", "model", "runtime", "device")
_SAME_ROWS = attrgetter("metric_name", "model", "runtime", "device", "data_sha256", "model_sha256", "created")
_SAME_GOLD = attrgetter("data_sha256", "labels")
_SAME_METHOD = attrgetter("schema", "clock")
_SAME_SHAPE = attrgetter("shape", "heads_per_layer", "ffn_per_layer", "parameters")
_SAME_RUN = attrgetter("data_sha256", "created")
_SAME_SPEED = attrgetter("host_id", "threads", "batch_size", "length", "padding", "max_length")


@dataclass
class ReferenceComparison:
    """What came of comparing ``lines`` with ``older`` ones, which a reader knows as ``name``."""

    lines: Sequence[Measurement]
    older: Sequence[Measurement]
    name: str
    judgements: list[Judgement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def judge(self, chosen: Sequence[Measurement], tolerance: Tolerance) -> None:
        """Judge lines by a tolerance; what cannot be compared becomes a note or is undecided, never passed over."""
        judged: set[tuple[object, ...]] = set()
        for line, subject in zip(chosen, subjects(chosen), strict=True):
            known = [old for old in self.older if _SAME_MODEL(old) == _SAME_MODEL(line)]
            before = [old for old in known if old.data_sha256 == line.data_sha256]
            if before:
                self._judge_known(line, subject, tolerance, before, judged)
            elif known:
                what = f"the loss of at most {in_points(tolerance.max_drop)} against {self.name}"
                count, of = line.counted
                why = (
                    f"it was measured there on other data than {line.data} ({count:,} {of}); write it anew with "
                    "--update-baseline"
                )
                limit = Limit("baseline_drop", tolerance.max_drop, subject)
                self.judgements.append(limit.because(what, UNDECIDED, why, count=count, of=of))
                self.changes.append(Change(subject, _newest(known), line))
            else:
                self.notes.append(f"{subject} is not in {self.name}, so it is not compared.")
                self.changes.append(Change(subject, None, line))
        self._note_what_is_gone()

    def _judge_known(
        self,
        line: Measurement,
        subject: str,
        tolerance: Tolerance,
        before: Sequence[Measurement],
        judged: set[tuple[object, ...]],
    ) -> None:
        """Judge a line by older ones; its metric only if its model is not one of those ``judged``, which it joins."""
        here = [old for old in before if old.host_id == line.host_id]
        like = [old for old in here if _SAME_SPEED(old) == _SAME_SPEED(line)]
        then = _newest(like or here or before)
        difference = None
        if line.interval("metric") and then.interval("metric"):
            difference = self._difference(line, then)
            if ONE_MODEL(line) not in judged:
                self.judgements.append(_judge_metric(line, subject, tolerance.max_drop, difference))
            judged.add(ONE_MODEL(line))
        ratio = None
        if not like:
            missing = "with these settings" if here else f"on this host ({line.host_id})"
            why = f"{self.name} has no speed measured {missing}"
        elif _SAME_METHOD(line) != _SAME_METHOD(then):
            why = f"{self.name} measured its speed by another method"
        elif not (teacher := _teacher(self.older, then)):
            why = f"{self.name} does not say over which teacher"
        elif teacher != _teacher(self.lines, line):
            why = f"{self.name} has speed-ups over a teacher of another shape"
        else:
            why = ""
            ratio = divided(line.speedups, then.speedups)
            self.judgements.append(_judge_speed(line, then, subject, tolerance.max_slowdown, ratio))
        if why:
            self.notes.append(f"{subject}: {why}, so its speed is not compared.")
        self.changes.append(Change(subject, then, line, difference, ratio))

    def _difference(self, line: Measurement, then: Measurement) -> Figures:
        """Return now minus then in points: row by row where both keep their predictions, else from two intervals."""
        now_rows = _kept(self.lines, line, "predictions", _SAME_ROWS)
        then_rows = _kept(self.older, then, "predictions", _SAME_ROWS)
        gold = _kept([*self.lines, *self.older], line, "gold", _SAME_GOLD)
        metric = metrics_by_name().get(line.metric_name or "")
        is_paired = line.labels == then.labels  # a prediction is the number of a label
        if metric and is_paired and now_rows is not None and then_rows is not None and gold is not None:
            if len(now_rows) == len(then_rows) == len(gold):
                classes = len(line.labels)
                found = paired_difference(now_rows, then_rows, gold, metric=metric, classes=classes)
                return found.points, found.low, found.high
        # Rows that cannot be paired: two separate intervals are wider.
        half = 100 * math.hypot(*(((x.metric_high or 0.0) - (x.metric_low or 0.0)) / 2 for x in (line, then)))
        difference = line.points_above(then)
        return difference, difference - half, difference + half

    def _note_what_is_gone(self) -> None:
        there = {(line.model, line.runtime) for line in self.lines}
        gone = [old for old in self.older if old.is_compressed and (old.model, old.runtime) not in there]
        for (model, runtime), lines in grouped(gone, lambda old: (old.model, old.runtime)).items():
            old = _newest(lines)
            if not any(change.now is None and change.then is old for change in self.changes):
                self.notes.append(f"{model} in {runtime} is in {self.name} and not in these results.")
                self.changes.append(Change(f"{model} in {runtime}", old, None))


def _teacher(lines: Sequence[Measurement], like: Measurement) -> tuple[Any, ...]:
    """Return what decides the speed of the model that a line's speed-up is relative to; weights do not."""
    found = (line for line in lines if line.is_reference and _SAME_RUN(line) == _SAME_RUN(like))
    return next(map(_SAME_SHAPE, found), ())


def _newest(lines: Sequence[Measurement]) -> Measurement:
    """Return the line of the newest run, and of its batch sizes the smallest."""
    return max(lines, key=lambda line: (line.created, -line.batch_size))


def _kept(lines: Sequence[Measurement], like: Measurement, key: str, same: attrgetter[Any]) -> np.ndarray | None:
    found = next((np.asarray(getattr(x, key)) for x in lines if getattr(x, key) and same(x) == same(like)), None)
    return found if found is not None and found.ndim == 1 and found.size and found.dtype.kind in "if" else None


def _judge_metric(line: Measurement, subject: str, budget: float, difference: Figures) -> Judgement:
    found = verdict.judge_drop(*difference, budget, line.data_rows)
    what = f"the loss of at most {in_points(budget)} of {line.metric_name} against the baseline"
    return Limit("baseline_drop", budget, subject).judged(what, as_loss(difference), found, lost, *line.counted)


def _judge_speed(line: Measurement, then: Measurement, subject: str, slowdown: float, ratio: Figures) -> Judgement:
    found = verdict.judge_speedup(*ratio, 1 - slowdown)
    what = (
        f"the speed-up of at least {1 - slowdown:.0%} of the baseline's at batch {line.batch_size} "
        f"({times(line.speedup)} now, {times(then.speedup)} then)"
    )
    limit = Limit("baseline_speed", 1 - slowdown, subject)
    return limit.judged(what, ratio, found, "{:.0%}".format, line.rounds, "rounds")
