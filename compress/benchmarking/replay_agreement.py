"""Compare the figures of a lock with those of new result lines, and decide whether the two runs agree."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compress.benchmarking.lockfile import Lock, LockedFigure
from compress.benchmarking.results.schema import Measurement
from compress.evaluation.metrics import CONFIDENCE

SAME_WITHIN = 1e-6  # of a metric: sums of floating-point numbers differ with the order of their terms
SIZE_WITHIN = 0.01  # a graph that another version exported names its nodes otherwise

# Outcomes of a comparison. The first two are agreement, the last two decide nothing.
SAME, WITHIN, DIFFERS, NOISY, OTHER_HOST = "the same", "within its interval", "differs", "too noisy", "other host"
# What all of them together say, with the exit code of each.
REPLAY_EXIT_CODES = {"agrees": 0, "differs": 1, "undecided": 3}


@dataclass(frozen=True)
class ReplayComparison:
    """A figure of the lock and the new one. ``what`` is the metric's name, ``size`` (bytes) or ``speed-up``."""

    model: str
    runtime: str
    setting: str
    what: str
    before: float
    before_low: float
    before_high: float
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
        return "undecided" if self.missing or outcomes & {NOISY, OTHER_HOST} else "agrees"

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
    pairs = [(old, new[_key(old, copies)]) for old in lock.figures if _key(old, copies) in new]
    missing = [f"{old.model} in {old.runtime}, {_setting(old)}" for old in lock.figures if _key(old, copies) not in new]
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
    return Agreement(tuple(comparisons), _changed(lock.versions, lines[0].versions), tuple(missing))


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
    by_hash = figure.is_locked_model and figure.model_sha256 not in copies
    who = (figure.kind, figure.model_sha256 if by_hash else figure.model)
    return *who, figure.runtime, figure.device, figure.threads, figure.batch_size, figure.length, figure.padding


def _setting(figure: LockedFigure) -> str:
    threads = f"{figure.threads} threads" if figure.threads > 1 else "1 thread"
    parts = [figure.device, threads, f"batch {figure.batch_size}"]
    parts += [f"{figure.length} tokens"] if figure.length else []
    parts += ["padded"] if figure.padding != "longest" else []
    return ", ".join(parts)


def _quality(old: LockedFigure, now: LockedFigure) -> ReplayComparison:
    assert old.metric is not None and old.metric_low is not None and old.metric_high is not None
    assert now.metric is not None
    same, within = abs(now.metric - old.metric) <= SAME_WITHIN, old.metric_low <= now.metric <= old.metric_high
    outcome = SAME if same else WITHIN if within else DIFFERS
    before = (old.metric, old.metric_low, old.metric_high)
    return ReplayComparison(old.model, old.runtime, "", old.metric_name or "metric", *before, now.metric, outcome)


def _size(old: LockedFigure, now: LockedFigure) -> ReplayComparison:
    size, margin = old.size_bytes, SIZE_WITHIN * old.size_bytes
    outcome = SAME if now.size_bytes == size else WITHIN if abs(now.size_bytes - size) <= margin else DIFFERS
    return ReplayComparison(
        old.model, old.runtime, "", "size", size, size - margin, size + margin, now.size_bytes, outcome
    )


def _speed(old: LockedFigure, now: LockedFigure, comparisons: int, same_host: bool) -> ReplayComparison:
    if not same_host:
        outcome = OTHER_HOST
    elif old.noisy or now.noisy:  # wide intervals agree with anything
        outcome = NOISY
    else:
        outcome = WITHIN if ratio_agrees(old, now, comparisons) else DIFFERS
    before = (old.speedup, old.speedup_low, old.speedup_high)
    return ReplayComparison(old.model, old.runtime, _setting(old), "speed-up", *before, now.speedup, outcome)


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = sorted({*before, *after})
    pairs = {name: (before.get(name, "not installed"), after.get(name, "not installed")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
