"""Replay stage: run a benchmark again from its lock, and compare the figures.

Models and data are known by their hashes, so that nobody compares with something else by mistake. Quality and size are
compared anywhere. Speed-ups are compared on a host of the same fingerprint only; elsewhere they are shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compress.benchmarking.benchmark import BenchmarkOutput, Data, benchmark, read_rows
from compress.benchmarking.lockfile import LOCKED_KINDS, Lock, LockedData, LockedModel, read_lock
from compress.benchmarking.replay_agreement import Agreement, compare
from compress.benchmarking.results.schema import Measurement
from compress.data import Example, content_sha256, row_key
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.inference.cores import core_count
from compress.models.cascade_dir import CASCADE_NAME, open_model
from compress.models.output_dir import keep_apart

DEPTH = 4  # how far below a root model directories are looked for


@dataclass(frozen=True)
class Replay:
    """What came of a replay: the lock, the new lines, and whether they agree."""

    lock: Lock
    lines: tuple[Measurement, ...]
    agreement: Agreement


def replay(
    lock: Lock | str | Path,
    data: Data,
    *,
    roots: Sequence[str | Path] = (),
    train: Data | None = None,
    output: BenchmarkOutput | str | Path | None = None,
) -> Replay:
    """Run the benchmark of a lock again and compare every figure.

    Args:
        lock: a lock, or the ``.lock.json`` file next to a result file.
        data: the test rows that the lock names.
        roots: directories below which the models are looked for; default where the lock lies, and the current one.
        train: the training rows that the lock names, if it does.
        output: the result file of the new results.

    Raises:
        CompressError: the lock is damaged, rows are not those it names, or a model is not found.
    """
    output = BenchmarkOutput.of(output)
    if not isinstance(lock, Lock):
        keep_apart(output.files, [lock])
        roots = roots or (Path(lock).parent, Path.cwd())
        lock = read_lock(lock)
    if lock.train is None and train is not None:
        raise CompressError(
            "the benchmark was given no training rows, so that a replay has no use for them; leave out --train"
        )
    if lock.train is not None and train is None:
        raise CompressError(
            f"the benchmark was given training rows, {lock.train.name!r} of {lock.train.rows:,} rows; give them with "
            "--train FILE"
        )
    rows = _locked_rows(data, lock.data, "data", "test")
    fitted = None
    if lock.train and train is not None:
        _, given = read_rows(train, "train")
        tested = frozenset(map(row_key, rows))
        fitted = [row for row in given if row_key(row) not in tested]  # what a benchmark leaves out
        if content_sha256(fitted) != lock.train.sha256:
            fitted = _locked_rows(given, lock.train, "train", "train")
    models = find_models(lock.models, [Path(root) for root in roots or (Path.cwd(),)])
    cores = core_count()  # figures of more threads than this host has cores for are reported as missing
    of_kind = {kind: [models[model] for model in lock.models if model.kind == kind] for kind in LOCKED_KINDS}
    lines = benchmark(
        of_kind["teacher"][0],
        [*of_kind["model"], *of_kind["cascade"]],
        rows,
        replace(lock.settings, threads=tuple(n for n in lock.settings.thread_counts if n <= cores) or cores),
        controls=of_kind["control"],
        train=fitted,
        output=replace(output, study=lock.study, budget=lock.budget, data_name=lock.data.name),
        compute=Compute(lock.settings.device, seed=lock.settings.seed),
    )
    return Replay(lock, tuple(lines), compare(lock, lines))


def _locked_rows(data: Data, locked: LockedData, option: str, role: str) -> list[Example]:
    _, examples = read_rows(data, role)
    if (sha256 := content_sha256(examples)) != locked.sha256:
        raise CompressError(
            f"--{option} has {len(examples):,} rows with the hash {sha256[:12]}; the lock names {locked.name!r} of "
            f"{locked.rows:,} rows with {locked.sha256[:12]}: give that file, and its columns if they are guessed wrong"
        )
    return examples


def find_models(models: Sequence[LockedModel], roots: Sequence[Path]) -> dict[LockedModel, Path]:
    """Find the directory of every model by its hash; names only say where to look first.

    Raises:
        CompressError: a root is no directory, or a model is not below any of them.
    """
    for root in roots:
        if not root.is_dir():
            raise CompressError(f"{root} is not a directory; give one that holds the models with --root")
    called = {model.directory for model in models}
    seen: dict[Path, int] = {}
    candidates = [path for root in roots for path in _directories(root.resolve(), DEPTH, seen)]
    found: dict[LockedModel, Path] = {}
    for directory in sorted(candidates, key=lambda path: path.name not in called):
        sha256 = _sha256(directory)
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


def _directories(root: Path, depth: int, seen: dict[Path, int]) -> Iterator[Path]:
    """Yield directories that may be models, at most so deep, each once however it is linked.

    ``seen`` remembers how deep was looked below each.
    """
    before = seen.get(root, -1)
    if before >= depth:
        return
    seen[root] = depth
    if before < 0 and any((root / name).is_file() for name in ("config.json", CASCADE_NAME)):
        yield root
    try:
        below = sorted(entry for entry in root.iterdir() if not entry.name.startswith(".") and entry.is_dir())
    except OSError:
        return
    for entry in below if depth else ():
        yield from _directories(entry.resolve(), depth - 1, seen)


def _sha256(directory: Path) -> str | None:
    """Return the hash of a model directory; None if it is none. The benchmark checks the files of those it opens."""
    try:
        return open_model(directory, verify=False).sha256
    except (CompressError, OSError):
        return None
