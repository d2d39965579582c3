"""The lock of a benchmark: hashes of models and data, settings and figures, from which a replay runs it again.

It names models and data by their hashes and holds no path. It may come from somebody else: every key and type is
checked, numbers are bounded, and no name in it is ever used as a path.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compress.benchmarking.results.schema import Measurement, WithIntervals
from compress.data import Example, content_sha256
from compress.errors import CompressError, refuse
from compress.fields import validated
from compress.files import parse_json, read_text, write_atomically
from compress.inference.compute import Compute
from compress.recipes import BenchmarkSettings
from compress.recipes.parsing import Checked, Seed, parse

LOCK_SUFFIX = ".lock.json"
LOCK_VERSION = 1
LOCKED_KINDS = ("teacher", "model", "cascade", "control")
LARGEST_BYTES = 64_000_000


@validated
class LockedData(Checked):
    """A file of examples: its name, the hash of its rows and their number."""

    name: str
    sha256: str
    rows: int

    def faults(self) -> list[str]:
        return [] if _is_sha256(self.sha256) and self.rows >= 2 else [f"data {self.name!r:.60} has no hash or no rows"]


@validated
class LockedModel(Checked):
    name: str
    kind: str
    sha256: str
    tokenizer_sha256: str
    directory: str
    training_seed: int | None

    def faults(self) -> list[str]:
        return _failed(
            {
                f"model {self.name!r:.60} is of kind {self.kind!r:.20}": self.kind in LOCKED_KINDS,
                f"model {self.name!r:.60} has no hash": _is_sha256(self.sha256),
                f"{self.directory!r:.60} is not the name of a directory": _is_one_name(self.directory),
            }
        )


class _FigureChecks(WithIntervals, Checked):
    def faults(self: Any) -> list[str]:
        return _failed(
            {
                **{f"{name} is not above 0": getattr(self, name) > 0 for name in ("speedup", "latency_p50_ms")},
                "speedup is outside its interval": 0 < self.speedup_low <= self.speedup <= self.speedup_high,
                "model_sha256 is not a hash": not self.model_sha256 or _is_sha256(self.model_sha256),
                "metric has no interval": (self.metric is None)
                == (self.metric_low is None)
                == (self.metric_high is None),
            }
        )


# The fields of a line that a lock keeps of each configuration.
_FIGURE = {
    "model": str,
    "kind": str,
    "model_sha256": str,
    "runtime": str,
    "device": str,
    "threads": int,
    "batch_size": int,
    "length": int | None,
    "padding": str,
    "metric_name": str | None,
    **dict.fromkeys(("metric", "metric_low", "metric_high"), float | None),
    **dict.fromkeys(("speedup", "speedup_low", "speedup_high"), float),
    "latency_p50_ms": float,
    "size_bytes": int,
    "clock": str,
    "schema": int,
}
if TYPE_CHECKING:
    LockedFigure = Measurement
else:
    LockedFigure = validated(make_dataclass("LockedFigure", _FIGURE.items(), bases=(_FigureChecks,), frozen=True))


def locked_figure(line: Measurement) -> LockedFigure:
    return LockedFigure(**{name: getattr(line, name) for name in _FIGURE})


@validated
class LockedSettings(BenchmarkSettings):
    device: Literal["cpu", "cuda"] = "cpu"
    seed: Seed = 0


# Fields that every line of a benchmark has alike.
_SHARED = ("versions", "host", "host_id", "study", "command", "created", "budget")


@validated
class Lock(Checked):
    data: LockedData
    train: LockedData | None
    models: tuple[LockedModel, ...]
    settings: LockedSettings
    figures: tuple[LockedFigure, ...]
    versions: Mapping[str, str]
    host: Mapping[str, Any]
    host_id: str
    study: str
    command: str
    created: str
    budget: str

    def faults(self) -> list[str]:
        has_teacher = [model.kind for model in self.models].count("teacher") == 1
        return _failed({"models do not have one teacher": has_teacher, "figures are missing": bool(self.figures)})


def lock_path(results: Path) -> Path:
    return results.with_name(results.stem + LOCK_SUFFIX)


def write_lock(
    results: Path,
    lines: Sequence[Measurement],
    settings: BenchmarkSettings,
    compute: Compute,
    places: Mapping[str, Path],
    train: Sequence[Example] | None = None,
) -> Path:
    """Write the lock of a benchmark beside its results, whole or not at all, and return its path.

    Args:
        results: the result file; see :func:`lock_path`.
        lines: the result lines; at least one.
        compute: the device and the seed.
        places: directories of models by their names in the lines; the lock keeps only what a directory is called.
        train: the training rows, of which the lock keeps the hash.
    """
    first = lines[0]
    found = {(line.model, line.model_sha256): line for line in reversed(lines) if line.kind in LOCKED_KINDS}
    directories = {name: place.resolve().name for name, place in places.items()}
    directories = {name: directory for name, directory in directories.items() if _is_one_name(directory)}
    lock = Lock(
        data=LockedData(first.data, first.data_sha256, first.data_rows),
        train=None if train is None else LockedData("train", content_sha256(train), len(train)),
        models=tuple(
            LockedModel(
                name=line.model,
                kind=line.kind,
                sha256=line.model_sha256,
                tokenizer_sha256=line.tokenizer_sha256,
                directory=directories.get(line.model, "model"),
                training_seed=line.training_seed,
            )
            for line in reversed(found.values())
        ),
        settings=LockedSettings(
            **{**vars(settings), "device": "cuda" if compute.device == "cuda" else "cpu", "seed": compute.seed}
        ),
        figures=tuple(locked_figure(line) for line in lines),
        **{name: getattr(first, name) for name in _SHARED},
    )
    target, content = lock_path(results), {"format_version": LOCK_VERSION, **asdict(lock)}
    write_atomically(target, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return target


def read_lock(path: str | Path) -> Lock:
    """Read and check a lock.

    Raises:
        CompressError: it is missing, damaged, of another version, or says something that no benchmark writes.
    """
    refuse((not Path(path).exists(), f"{path} does not exist; 'compress benchmark -o results.jsonl' writes its lock"))
    text = read_text(Path(path), LARGEST_BYTES)
    try:
        content = parse_json(text, "it")
    except CompressError as error:
        fault = str(error).rpartition(";")[0]  # without its advice, which is for files of any kind
        raise CompressError(
            f"{path} cannot be read as a lock: {fault}; give the whole .lock.json of a benchmark"
        ) from None
    refuse((not isinstance(content, dict), f"{path} is not a lock of compress benchmark: it is not an object"))
    version = content.pop("format_version", None)
    refuse(
        (
            version != LOCK_VERSION,
            f"{path} is a lock of format {version!r:.20}; this compress reads {LOCK_VERSION}",
        )
    )
    try:
        return parse(Lock, content, source="it")
    except CompressError as error:
        raise CompressError(f"{path} is not a lock of compress benchmark: {ascii(str(error))[1:-1]:.300}") from None


def _failed(checks: Mapping[str, bool]) -> list[str]:
    """Return what does not hold of what every benchmark writes."""
    return [fault for fault, is_right in checks.items() if not is_right]


def _is_sha256(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _is_one_name(name: str) -> bool:
    return bool(name) and name.isprintable() and not name.startswith(".") and not re.search(r"[/\\:]", name)
