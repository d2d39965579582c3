"""Reference results, here or at a git reference, and how results compare: quality across hosts, speed on the same host.

They are a file, or a directory with one file for each host.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from compress.benchmarking.results import verdict
from compress.benchmarking.results.files import (
    Results,
    grouped,
    parse_results,
    write_results,
)
from compress.benchmarking.results.formatting import in_points, times
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError, refuse
from compress.evaluation.metrics import paired_difference
from compress.files import RESULTS_LIMIT_BYTES
from compress.gating.budgets import Tolerance
from compress.gating.judgements import ONE_MODEL, UNDECIDED, Change, Figures, Judgement, Limit, as_loss, lost, subjects
from compress.inference.speedup_intervals import Interval, divided
from compress.models.output_dir import check_file
from compress.tasks import metrics_by_name

SAYS = "<git>"  # stands for git's own words in a message
REFERENCE_SUFFIX = ".jsonl"
_HOST = re.compile(r"[0-9A-Za-z_-]{1,64}")


def read_reference(path: str | Path, hosts: Iterable[str]) -> Sequence[Measurement]:
    """Return the lines of a baseline, those of the given hosts first.

    Of a directory, ``<host_id>.jsonl`` is read for each host; where a host has none, the files of all others are
    read too, as quality is comparable across hosts.

    Raises:
        CompressError: there is nothing, or a file is damaged or named after another host than its lines.
    """
    folder = Path(path)
    refuse(
        (
            not folder.exists(),
            f"--baseline {path} does not exist; make it with 'compress check RESULTS --update-baseline DIRECTORY', or "
            "name older results",
        )
    )
    if not folder.is_dir():
        return Results.open(folder)
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return _of_hosts(names, lambda name: Results.open(folder / name), hosts, str(path))


def read_against(spec: str, hosts: Iterable[str]) -> Sequence[Measurement]:
    """Return the lines of a baseline, file or directory, as it is at ``REF:PATH`` in git.

    PATH counts from the top of the repository: ``origin/main:benchmarks/baselines``. No checkout is needed.

    Raises:
        CompressError: as :func:`read_reference`, and where there is no git, no repository, no such reference or path.
    """
    reference, colon, path = spec.partition(":")
    refuse(
        (
            not (colon and reference and path) or reference.startswith("-"),
            f"--against {spec!r} is not REF:PATH; give a git reference and a path in it, such as "
            "origin/main:benchmarks/baselines",
        )
    )
    _git(f"--against {spec!r} needs a git repository here, but git says: {SAYS}", "rev-parse", "--git-dir")
    commit = _git(
        f"--against {spec!r}: the repository has no reference {reference!r}; fetch it first, such as with "
        "'git fetch origin main', or look at 'git branch --all'",
        *("rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}"),
    )
    found = f"{commit.decode().strip()}:{path.rstrip('/') or path}"
    kind = _git(
        f"--against {spec!r}: {reference} has no {path!r}; paths count from the top of the repository, or begin "
        f"with ./ : look at 'git ls-tree -r --name-only {reference}'",
        *("cat-file", "-t", found),
    )

    def read(inside: str = "") -> Sequence[Measurement]:
        fault = f"{spec}{inside} cannot be read from the repository; git says: {SAYS}"
        size = int(_git(fault, "cat-file", "-s", f"{found}{inside}"))
        too_large = f"{spec}{inside} has more than {RESULTS_LIMIT_BYTES:,} bytes; give a smaller one"
        refuse((size > RESULTS_LIMIT_BYTES, too_large))
        content = _git(fault, "cat-file", "blob", f"{found}{inside}")
        try:
            return parse_results(content.decode("utf-8"), f"{spec}{inside}")
        except UnicodeDecodeError as error:
            raise CompressError(
                f"{spec}{inside} cannot be read as results ({error}); give a .jsonl of benchmark"
            ) from None

    if kind.strip() != b"tree":
        return read()
    listed = _git(f"{spec} cannot be listed; git says: {SAYS}", "ls-tree", "--full-tree", "--name-only", "-z", found)
    return _of_hosts(listed.decode("utf-8", "replace").split("\0"), lambda name: read(f"/{name}"), hosts, spec)


def _git(fault: str, *arguments: str) -> bytes:
    """Return what git prints; where it fails, ``fault`` is raised with git's own first line in the place of SAYS."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    except FileNotFoundError:
        raise CompressError("--against needs git, and it is not installed; use --baseline with a file") from None
    if done.returncode:
        says = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise CompressError(fault.replace(SAYS, says[0]))
    return done.stdout


def store_reference(results: Sequence[str | Path], directory: str | Path) -> dict[Path, list[str]]:
    """Make results the baseline of their hosts: ``directory/<host_id>.jsonl``, each replaced whole.

    Returns:
        The files, with the models of each that were in it before and no longer are; on data that no longer is, with it.

    Raises:
        CompressError: the directory is a file, or holds something else under the name of a host.
    """
    lines, folder = Results.open(*results), Path(directory)
    refuse(
        (folder.is_file(), f"--update-baseline {folder} is a file; give the directory that holds one file a host"),
        *(
            (not _HOST.fullmatch(line.host_id), f"host_id {line.host_id!r} cannot name a file; run the benchmark again")
            for line in lines
        ),
    )
    by_host = grouped(lines, lambda line: folder / f"{line.host_id}{REFERENCE_SUFFIX}")
    gone: dict[Path, list[str]] = {}
    for path, own in by_host.items():
        check_file(path, "--update-baseline")
        before = Results.open(path) if path.is_file() else []
        names, sets = {line.model for line in own}, {line.data for line in own}
        missing = [line for line in before if line.model not in names or line.data not in sets]
        said = (line.model + (f" on {line.data}" if line.data not in sets else "") for line in missing)
        gone[path] = list(dict.fromkeys(said))
    for path, own in by_host.items():
        write_results(path, own)
    return gone


def _of_hosts(
    names: Sequence[str], read: Callable[[str], Sequence[Measurement]], hosts: Iterable[str], where: str
) -> Sequence[Measurement]:
    there = sorted(name for name in names if name.endswith(REFERENCE_SUFFIX))
    refuse((not there, f"{where} holds no baseline; make one with 'compress check RESULTS --update-baseline DIR'"))
    wanted = [f"{host}{REFERENCE_SUFFIX}" for host in dict.fromkeys(hosts)]
    own = [name for name in wanted if name in there]
    others = [name for name in there if name not in own] if len(own) < len(wanted) else []
    lines: list[Measurement] = []
    for name in own + others:
        found = read(name)
        strangers = ", ".join(sorted({line.host_id for line in found} - {name.removesuffix(REFERENCE_SUFFIX)}))
        advice = "a baseline is named after its host: write it with --update-baseline"
        refuse((strangers, f"{where}/{name} holds lines of another host ({strangers}); {advice}"))
        lines += found
    return lines


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
                most = tolerance.max_drop
                found = verdict.judge_drop(*difference, most, line.data_rows)
                what = f"the loss of at most {in_points(most)} of {line.metric_name} against the baseline"
                limit = Limit("baseline_drop", most, subject)
                self.judgements.append(limit.judged(what, as_loss(difference), found, lost, *line.counted))
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
            least = 1 - tolerance.max_slowdown
            what = (
                f"the speed-up of at least {least:.0%} of the baseline's at batch {line.batch_size} "
                f"({times(line.speedup)} now, {times(then.speedup)} then)"
            )
            found, limit = verdict.judge_speedup(*ratio, least), Limit("baseline_speed", least, subject)
            self.judgements.append(limit.judged(what, ratio, found, "{:.0%}".format, line.rounds, "rounds"))
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
        bounds = [one.interval("metric") or Interval(0, 0, 0) for one in (line, then)]
        half = 100 * math.hypot(*((one.high - one.low) / 2 for one in bounds))
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
