"""Compare the figures of a lock with those of new result lines, and decide whether the two runs agree."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compress.benchmarking.lockfile import LOCKED_KINDS, Lock, LockedFigure
from compress.benchmarking.results.schema import Measurement
from compress.evaluation.cluster_bootstrap import CONFIDENCE
from compress.inference.speedup_intervals import Interval

SAME_WITHIN = 1e-6  # of a metric: sums of floating-point numbers differ with the order of their terms
SIZE_WITHIN = 0.01  # a graph that another version exported names its nodes otherwise

# Outcomes of a comparison. The first two are agreement, the last two decide nothing.
SAME, WITHIN, DIFFERS = "the same", "within its interval", "differs"
OTHER_HOST, OTHER_METHOD = "other host", "other method"
# What all of them together say, with the exit code of each.
REPLAY_EXIT_CODES = {"agrees": 0, "differs": 1, "undecided": 3}


@dataclass(frozen=True)
class ReplayComparison:
    """A figure of the lock, with the interval that counts as agreement, and the new one.

    ``what`` is the metric's name, ``size`` (bytes) or ``speed-up``.
    """

    model: str
    runtime: str
    setting: str
    what: str
    before: Interval
    after: float
    outcome: str


@dataclass(frozen=True)
class Agreement:
    """Every comparison, versions that changed (before and after), and configurations that were not measured again."""

    comparisons: tuple[ReplayComparison, ...]
    versions: Mapping[str, tuple[str, str]]
    missing: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """``agrees``, ``differs`` or ``undecided``."""
        outcomes = {comparison.outcome for comparison in self.comparisons}
        if DIFFERS in outcomes:
            return "differs"
        return "undecided" if self.missing or outcomes & {OTHER_HOST, OTHER_METHOD} else "agrees"

    @property
    def exit_code(self) -> int:
        return REPLAY_EXIT_CODES[self.verdict]


def compare(lock: Lock, lines: Sequence[Measurement]) -> Agreement:
    """Compare every figure of a lock with that of the same configuration among new lines.

    Quality and size are compared once for each model and runtime, whatever the host. Speed-ups are compared at every
    setting, on a host of the same fingerprint only: see :func:`ratio_agrees`.
    """
    copies = {sha256 for sha256, count in Counter(model.sha256 for model in lock.models).items() if count > 1}
    new = {_key(figure, copies): figure for figure in map(LockedFigure.of, lines)}
    again = [(old, new.get(_key(old, copies))) for old in lock.figures]
    missing = [f"{old.model} in {old.runtime}, {_setting(old)}" for old, now in again if now is None]
    pairs = [(old, now) for old, now in again if now is not None]
    once = {(old.kind, old.model, old.runtime): (old, now) for old, now in reversed(pairs)}
    scored = [(old, now) for old, now in reversed(once.values()) if old.metric is not None and now.metric is not None]
    # The teacher in torch is what the others are compared with: its own speed-up is 1 by definition.
    timed = [(old, now) for old, now in pairs if old.speedup_low != old.speedup_high or now.speedup != old.speedup]
    same_host = lines[0].host_id == lock.host_id
    comparisons = [
        *(_quality(old, now) for old, now in scored),
        *(_size(old, now) for old, now in reversed(once.values())),
        *(_speed(old, now, len(timed), same_host) for old, now in timed),
    ]
    versions = {
        name: (lock.versions.get(name, "not installed"), lines[0].versions.get(name, "not installed"))
        for name in sorted({*lock.versions, *lines[0].versions})
    }
    changed = {name: (before, after) for name, (before, after) in versions.items() if before != after}
    return Agreement(tuple(comparisons), changed, tuple(missing))


def ratio_agrees(before: LockedFigure, after: LockedFigure, comparisons: int = 1) -> bool:
    """Tell whether two speed-ups are the same within their errors: whether the interval of their ratio holds 1.

    Errors are independent, and those of a speed-up multiply: they are added in squares on the scale of its logarithm.
    Of many comparisons some would fall outside a 95% interval by chance, so that all of them together are held to 95%
    (Bonferroni).
    """
    from scipy.stats import norm

    slower, faster = sorted((before, after), key=lambda figure: figure.speedup)
    error = math.hypot(math.log(slower.speedup_high / slower.speedup), math.log(faster.speedup / faster.speedup_low))
    wider = norm.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons) / norm.ppf((1 + CONFIDENCE) / 2)
    return bool(math.log(faster.speedup / slower.speedup) <= wider * error)


def _key(figure: LockedFigure, copies: set[str]) -> tuple[Any, ...]:
    """Return what makes figures those of one configuration; elsewhere a model directory may be called otherwise."""
    by_hash = figure.kind in LOCKED_KINDS and figure.model_sha256 not in copies
    who = (figure.kind, figure.model_sha256 if by_hash else figure.model)
    return *who, figure.runtime, figure.device, figure.threads, figure.batch_size, figure.length, figure.padding


def _setting(figure: LockedFigure) -> str:
    threads = f"{figure.threads} threads" if figure.threads > 1 else "1 thread"
    parts = [figure.device, threads, f"batch {figure.batch_size}"]
    parts += [f"{figure.length} tokens"] if figure.length else []
    parts += ["padded"] if figure.padding != "longest" else []
    return ", ".join(parts)


def _quality(old: LockedFigure, now: LockedFigure) -> ReplayComparison:
    before = old.interval("metric")
    assert before is not None and now.metric is not None
    return _repeated(old, old.metric_name or "metric", before, now.metric, same_within=SAME_WITHIN)


def _size(old: LockedFigure, now: LockedFigure) -> ReplayComparison:
    margin = SIZE_WITHIN * old.size_bytes
    before = Interval(old.size_bytes, old.size_bytes - margin, old.size_bytes + margin)
    return _repeated(old, "size", before, now.size_bytes, same_within=0)


def _repeated(old: LockedFigure, what: str, before: Interval, now: float, same_within: float) -> ReplayComparison:
    """Compare a figure that does not depend on the host."""
    outcome = WITHIN if before.low <= now <= before.high else DIFFERS
    if abs(now - before.value) <= same_within:
        outcome = SAME
    return ReplayComparison(old.model, old.runtime, "", what, before, now, outcome)


def _speed(old: LockedFigure, now: LockedFigure, comparisons: int, same_host: bool) -> ReplayComparison:
    if not same_host:
        outcome = OTHER_HOST
    elif (old.clock, old.schema) != (now.clock, now.schema):
        outcome = OTHER_METHOD
    else:
        outcome = WITHIN if ratio_agrees(old, now, comparisons) else DIFFERS
    before = Interval(old.speedup, old.speedup_low, old.speedup_high)
    return ReplayComparison(old.model, old.runtime, _setting(old), "speed-up", before, now.speedup, outcome)
