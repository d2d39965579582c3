"""Replay stage: run a benchmark again from its lock, and compare the figures.

Models and data are known by their hashes, so that nobody compares with something else by mistake. Quality and size are
compared anywhere. Speed-ups are compared on a host of the same fingerprint only; elsewhere they are shown.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compress.benchmarking.benchmark import BenchmarkOutput, benchmark, labelled_rows, parts_of
from compress.benchmarking.lockfile import (
    LOCKED_KINDS,
    Lock,
    LockedData,
    LockedFigure,
    LockedModel,
    locked_figure,
    read_lock,
)
from compress.benchmarking.results.files import Results
from compress.benchmarking.results.formatting import plural
from compress.benchmarking.results.schema import Measurement
from compress.data import Example, content_sha256, load_rows, open_text, row_key
from compress.errors import CompressError, ExitCode, refuse
from compress.evaluation.metrics import CONFIDENCE
from compress.inference.compute import Compute
from compress.inference.runners import NATIVE
from compress.inference.speedup_intervals import Interval
from compress.inference.threads import core_count
from compress.models.model_dir import CASCADE_NAME, open_model
from compress.requests.measuring import Replay

DEPTH = 4  # how far below a root model directories are looked for
SAME_WITHIN = 1e-6  # of a metric: sums of floating-point numbers differ with the order of their terms
SIZE_WITHIN = 0.01  # a graph that another version exported names its nodes otherwise

# Outcomes of a comparison. The first two are agreement, the last two decide nothing.
SAME, WITHIN, DIFFERS = "the same", "within its interval", "differs"
OTHER_HOST, OTHER_METHOD = "other host", "other method"
# What all of them together say, with the exit code of each.
REPLAY_EXIT_CODES = {"agrees": ExitCode.DONE, "differs": ExitCode.BROKEN, "undecided": ExitCode.UNDECIDED}


@dataclass(frozen=True)
class ReplayComparison:
    """A figure of the lock, with the interval that counts as agreement, and the new one.

    ``what`` is the metric's name, ``size`` (bytes) or ``speed-up``, of the model alone.
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


@dataclass(frozen=True)
class ReplayOutcome:
    """What came of a replay: the lock, the new lines, and whether they agree."""

    lock: Lock
    lines: Results
    agreement: Agreement


def replay(request: Replay) -> ReplayOutcome:
    """Run the benchmark of a lock again and compare every figure.

    Raises:
        CompressError: the lock is damaged, rows are not those it names, or a model is not found.
    """
    output = BenchmarkOutput.for_request(request)
    lock = read_lock(Path(request.lock))
    rows = load_rows(request.data, role="test", **request.columns, values=lock.settings.slice_columns)
    given = parts_of(request.train)
    if given:
        open_text(*given, role=None, beside=request.data, **request.columns)  # refuses what cannot be read at all
    train, _ = labelled_rows(given, request.columns)
    no_use = "the benchmark was given no training rows, so that a replay has no use for them; leave out --train"
    refuse((train and not lock.train, no_use))
    _check_rows(rows, lock.data, "data")
    fitted = None
    if lock.train:
        missing = f"the benchmark was given training rows, {lock.train.name!r} of {lock.train.rows:,} rows"
        refuse((not train, f"{missing}; give them with --train FILE"))
        tested = frozenset(map(row_key, rows))
        fitted = [row for row in train if row_key(row) not in tested]  # what a benchmark leaves out
        if content_sha256(fitted) != lock.train.sha256:
            _check_rows(train, lock.train, "train")
            fitted = train
    models = find_models(lock.models, [*map(Path, request.roots or (Path(request.lock).parent, Path.cwd()))])
    cores = core_count()  # figures of more threads than this host has cores for are reported as missing
    of_kind = {kind: [models[model] for model in lock.models if model.kind == kind] for kind in LOCKED_KINDS}
    settings = replace(lock.settings, threads=tuple(n for n in lock.settings.thread_counts if n <= cores) or cores)
    ran = dict.fromkeys(figure.runtime for figure in lock.figures if figure.kind in LOCKED_KINDS)
    if not settings.runtimes and NATIVE not in ran:  # else models with a container would run in the native library now
        settings = replace(settings, runtimes=tuple(ran))
    lines = benchmark(
        of_kind["teacher"][0],
        [*of_kind["model"], *of_kind["cascade"]],
        rows,
        settings,
        controls=of_kind["control"],
        train=fitted,
        output=replace(output, study=lock.study, budget=lock.budget, data_name=lock.data.name),
        compute=Compute(lock.settings.device, seed=lock.settings.seed),
    )
    return ReplayOutcome(lock, lines, compare(lock, lines))


def _check_rows(rows: list[Example], locked: LockedData, option: str) -> None:
    sha256 = content_sha256(rows)
    fault = (
        f"--{option} has {len(rows):,} rows with the hash {sha256[:12]}; the lock names {locked.name!r} of "
        f"{locked.rows:,} rows with {locked.sha256[:12]}: give that file, and its columns if they are guessed wrong"
    )
    refuse((sha256 != locked.sha256, fault))


def find_models(models: Sequence[LockedModel], roots: Sequence[Path]) -> dict[LockedModel, Path]:
    """Find the directory of every model by its hash; names only say where to look first.

    Raises:
        CompressError: a root is no directory, or a model is not below any of them.
    """
    refuse(*((not r.is_dir(), f"{r} is not a directory; give one that holds the models with --root") for r in roots))
    called = {model.directory for model in models}
    found: dict[LockedModel, Path] = {}
    places = dict.fromkeys(path for root in roots for path in _directories(root.resolve()))
    for directory in sorted(places, key=lambda path: (path.name not in called, path)):
        try:  # the benchmark checks the files of those it opens
            sha256 = open_model(directory, verify=False).sha256
        except (CompressError, OSError):
            continue  # it is no model
        same = [model for model in models if model.sha256 == sha256 and model not in found]
        if same:  # of copies, the one whose directory is called so
            found[next((model for model in same if model.directory == directory.name), same[0])] = directory
        if len(found) == len(models):
            return found
    missing = next(model for model in models if model not in found)
    raise CompressError(
        f"no directory below {', '.join(map(str, roots))} is the {missing.kind} {missing.name!r} of the lock (hash "
        f"{missing.sha256[:12]}, its directory was called {missing.directory!r}); say where models lie with --root DIR"
    )


def _directories(root: Path) -> Iterator[Path]:
    """Yield directories that may be models, at most :data:`DEPTH` below a root; links are followed so far."""
    for depth in range(DEPTH + 1):
        for name in ("config.json", CASCADE_NAME):
            for file in root.glob("*/" * depth + name):
                if not any(part.startswith(".") for part in file.relative_to(root).parts) and file.is_file():
                    yield file.parent.resolve()


def compare(lock: Lock, lines: Sequence[Measurement]) -> Agreement:
    """Compare every figure of a lock with that of the same configuration among new lines.

    Quality and size are compared once for each model and runtime, whatever the host. Speed-ups are compared at every
    setting, on a host of the same fingerprint only: see :func:`ratio_agrees`.
    """
    copies = {sha256 for sha256, count in Counter(model.sha256 for model in lock.models).items() if count > 1}
    new = {_key(figure, copies): figure for figure in map(locked_figure, lines)}
    again = [(old, new.get(_key(old, copies))) for old in lock.figures]
    missing = [f"{old.model} in {old.runtime}, {_setting(old)}" for old, now in again if now is None]
    pairs = [(old, now) for old, now in again if now is not None]
    once = {(old.kind, old.model, old.runtime): (old, now) for old, now in reversed(pairs)}
    # The teacher in torch is what the others are compared with: its own speed-up is 1 by definition.
    ones = [Interval(1.0, 1.0, 1.0)] * 2
    timed = [pair for pair in pairs if [one.figure("speedup") for one in pair] != ones]
    same_host = lines[0].host_id == lock.host_id
    comparisons = [
        _repeated(old, old.metric_name or "metric", metric, now.metric, SAME_WITHIN)
        for old, now in reversed(once.values())
        if (metric := old.interval("metric")) and now.metric is not None
    ]
    for old, now in reversed(once.values()):
        size, margin = old.size_bytes, SIZE_WITHIN * old.size_bytes
        comparisons.append(_repeated(old, "size", Interval(size, size - margin, size + margin), now.size_bytes, 0))
    comparisons += [_speed(old, now, len(timed), same_host) for old, now in timed]
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

    slower, faster = sorted(one.figure("speedup") for one in (before, after))
    error = math.hypot(math.log(slower.high / slower.value), math.log(faster.value / faster.low))
    wider = norm.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons) / norm.ppf((1 + CONFIDENCE) / 2)
    return bool(math.log(faster.value / slower.value) <= wider * error)


def _key(figure: LockedFigure, copies: set[str]) -> tuple[Any, ...]:
    """Return what makes figures those of one configuration; elsewhere a model directory may be called otherwise."""
    by_hash = figure.kind in LOCKED_KINDS and figure.model_sha256 not in copies
    setting = (figure.runtime, figure.device, figure.threads, figure.batch_size, figure.length, figure.padding)
    return figure.kind, figure.model_sha256 if by_hash else figure.model, *setting


def _setting(figure: LockedFigure) -> str:
    length = f"{figure.length} tokens" if figure.length else ""
    padded = "padded" if figure.padding != "longest" else ""
    parts = (figure.device, plural(figure.threads, "thread"), f"batch {figure.batch_size}", length, padded)
    return ", ".join(filter(None, parts))


def _repeated(old: LockedFigure, what: str, before: Interval, now: float, same_within: float) -> ReplayComparison:
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
    before = old.figure("speedup")
    return ReplayComparison(old.model, old.runtime, _setting(old), "speed-up", before, now.speedup, outcome)
