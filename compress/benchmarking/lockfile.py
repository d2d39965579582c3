"""The lock of a benchmark: everything needed to run it again elsewhere, and the figures to hold the new ones against.

It names data and models by their hashes and never by where they lie. It is read as what it is, a file of somebody else:
every key and type is checked, numbers are bounded, and no name in it is ever used as a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from compress.benchmarking.results.files import Measurement
from compress.data import Example, content_sha256
from compress.errors import CompressError
from compress.models.model_dir import ModelDir
from compress.models.output_dir import write_atomically
from compress.plugins import RENAMED, fits

SUFFIX = ".lock.json"
FORMAT_VERSION = 1
KINDS = ("teacher", "model", "control")  # what is found again by its hash; all others are made anew
LARGEST_BYTES = 64_000_000


@dataclass(frozen=True)
class LockedData:
    """A file of examples: its name, the hash of its rows and their number."""

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class LockedModel:
    """A model directory: the name it had in the results, its kind and hashes, and how its directory was called."""

    name: str
    kind: str
    sha256: str
    tokenizer_sha256: str
    directory: str
    training_seed: int | None


@dataclass(frozen=True)
class Figure:
    """What was measured of one configuration; see :mod:`compress.benchmarking.results.schema` for every field."""

    model: str
    kind: str
    model_sha256: str
    runtime: str
    device: str
    threads: int
    batch_size: int
    length: int | None
    padding: str
    metric_name: str | None
    metric: float | None
    metric_low: float | None
    metric_high: float | None
    speedup: float
    speedup_low: float
    speedup_high: float
    latency_p50_ms: float
    noisy: bool
    size_bytes: int

    @classmethod
    def of(cls, line: Measurement) -> Figure:
        """Take what a lock keeps out of a line of results."""
        return cls(**{f.name: line[f.name] for f in fields(cls)})

    @property
    def is_locked_model(self) -> bool:
        """Whether it is of a model directory, which its hash names; all else is made anew."""
        return self.kind in KINDS


@dataclass(frozen=True)
class Lock:
    """A benchmark that can be run again. ``settings`` are arguments of
    :func:`compress.benchmarking.benchmark.benchmark`.
    """

    data: LockedData
    train: LockedData | None
    models: tuple[LockedModel, ...]
    settings: Mapping[str, Any]
    figures: tuple[Figure, ...]
    versions: Mapping[str, str]
    host: Mapping[str, Any]
    host_id: str
    study: str
    command: str
    created: str


def lock_path(results: Path) -> Path:
    """Return where the lock of a result file lies: beside it, ``sst2.jsonl`` has ``sst2.lock.json``."""
    return results.with_name(results.stem + SUFFIX)


def write_lock(results: Path, lines: Sequence[Measurement], arguments: Mapping[str, Any]) -> Path:
    """Write the lock of a benchmark beside its results, whole or not at all, and return its path.

    Args:
        results: the result file; see :func:`lock_path`.
        lines: what the benchmark returned; at least one.
        arguments: what ``compress.benchmark`` was called with, by name. ``teacher``, ``models`` and ``controls`` say
            how directories are called, ``train`` are rows and hashed, settings are kept, and what changes no figure
            (:data:`NOT_KEPT`) is left out.

    Raises:
        ValueError: an argument that this module does not know, which a replay would silently miss.
    """
    if unknown := sorted(set(arguments) - set(SETTINGS) - set(NOT_KEPT)):
        raise ValueError(f"a lock does not know the arguments {unknown} of benchmark; add them to lock.SETTINGS")
    first = lines[0]
    content = {
        "format_version": FORMAT_VERSION,
        "created": first["created"],
        "study": first["study"],
        "command": first["command"],
        "data": asdict(LockedData(first["data"], first["data_sha256"], first["data_rows"])),
        "train": _train(arguments.get("train")),
        "models": _models(lines, arguments),
        "settings": {name: arguments[name] for name in SETTINGS if name in arguments},
        "versions": first["versions"],
        "host": first["host"],
        "host_id": first["host_id"],
        "figures": [asdict(Figure.of(line)) for line in lines],
    }
    target = lock_path(results)
    write_atomically(target, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return target


def _train(rows: Sequence[Example] | None) -> dict[str, Any] | None:
    return None if rows is None else asdict(LockedData("train", content_sha256(rows), len(rows)))


def _models(lines: Sequence[Measurement], arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = [arguments.get("teacher"), *arguments.get("models", ()), *arguments.get("controls", ())]
    opened = [m if isinstance(m, ModelDir) else ModelDir.open(m, verify=False) for m in given if m is not None]
    found = {(line["model"], line["model_sha256"]): line for line in reversed(lines) if line["kind"] in KINDS}
    return [
        asdict(
            LockedModel(
                name=line["model"],
                kind=line["kind"],
                sha256=line["model_sha256"],
                tokenizer_sha256=line["tokenizer_sha256"],
                directory=_directory_name(line, opened),
                training_seed=line["training_seed"],
            )
        )
        for line in reversed(found.values())
    ]


def _directory_name(line: Measurement, opened: Sequence[ModelDir]) -> str:
    """Return how a model's directory is called, without where it lies; of copies the one whose name is the line's."""
    called = [model.path.resolve().name for model in opened if model.sha256 == line["model_sha256"]]
    own = line["model"].rpartition("/")[2]
    name = own if own in called or not called else called[0]
    return name if _is_one_name(name) else "model"


def read_lock(path: str | Path) -> Lock:
    """Read and check a lock.

    Raises:
        CompressError: it is missing, damaged, of another version, or says something that no benchmark writes.
    """
    source = Path(path)
    try:
        if source.stat().st_size > LARGEST_BYTES:
            raise CompressError(f"{path} is too large to be a lock; give the .lock.json of a benchmark")
        content = json.loads(source.read_text(encoding="utf-8"), parse_constant=_refuse)
    except FileNotFoundError:
        raise CompressError(f"{path} does not exist; 'compress benchmark -o results.jsonl' writes its lock") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CompressError(f"{path} cannot be read as a lock ({error}); give the .lock.json of a benchmark") from None
    if isinstance(content, dict) and content.get("format_version") not in (None, FORMAT_VERSION):
        raise CompressError(
            f"{path} is a lock of format {content['format_version']!r:.20}; this compress reads {FORMAT_VERSION}"
        )
    if isinstance(content, dict) and isinstance(content.get("settings"), dict):
        content["settings"] = {RENAMED.get(name, name): value for name, value in content["settings"].items()}
    try:
        return _lock(content)
    except _Wrong as wrong:
        raise CompressError(f"{path} is not a lock of compress benchmark: {wrong}") from None


class _Wrong(Exception):
    """What is wrong with a lock, and where in it."""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _lock(content: Any) -> Lock:
    names = {"format_version", *(f.name for f in fields(Lock))}
    _check_keys(content, names, "it")
    for name in ("host_id", "study", "command", "created"):
        _expect(isinstance(content[name], str), f"{name} is not a text")
    for name in ("versions", "host", "settings"):
        _expect(isinstance(content[name], dict), f"{name} is not an object")
    _expect(all(isinstance(v, str) for v in content["versions"].values()), "versions are not texts")
    lock = Lock(
        data=_record(LockedData, content["data"], "data"),
        train=None if content["train"] is None else _record(LockedData, content["train"], "train"),
        models=tuple(_records(LockedModel, content["models"], "models")),
        figures=tuple(_records(Figure, content["figures"], "figures")),
        **{name: content[name] for name in ("settings", "versions", "host", "host_id", "study", "command", "created")},
    )
    for data in filter(None, (lock.data, lock.train)):
        _expect(_is_sha256(data.sha256) and 2 <= data.rows, f"data {data.name!r:.60} has no hash or no rows")
    _check_models(lock.models)
    _check_settings(lock.settings)
    _expect(bool(lock.figures), "figures are missing")
    for number, figure in enumerate(lock.figures):
        _check_figure(figure, f"figures[{number}]")
    return lock


def _check_models(models: Sequence[LockedModel]) -> None:
    _expect([m.kind for m in models].count("teacher") == 1, "models do not have one teacher")
    for model in models:
        _expect(model.kind in KINDS, f"model {model.name!r:.60} is of kind {model.kind!r:.20}")
        _expect(_is_sha256(model.sha256), f"model {model.name!r:.60} has no hash")
        _expect(_is_one_name(model.directory), f"directory {model.directory!r:.60} is not the name of a directory")


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        _expect(name in SETTINGS, f"setting {name!r:.40} is unknown")
        _expect(SETTINGS[name](value), f"setting {name} is {value!r:.60}, which no benchmark takes")


def _check_figure(figure: Figure, where: str) -> None:
    for name in ("speedup", "latency_p50_ms"):
        _expect(getattr(figure, name) > 0, f"{where}.{name} is not above 0")
    _expect(0 < figure.speedup_low <= figure.speedup <= figure.speedup_high, f"{where}.speedup is outside its interval")
    _expect(not figure.model_sha256 or _is_sha256(figure.model_sha256), f"{where}.model_sha256 is not a hash")
    measured = [figure.metric, figure.metric_low, figure.metric_high]
    _expect(None not in measured or not any(v is not None for v in measured), f"{where}.metric has no interval")


def _records(kind: type[Any], values: Any, where: str) -> list[Any]:
    _expect(isinstance(values, list), f"{where} is not a list")
    return [_record(kind, value, f"{where}[{number}]") for number, value in enumerate(values)]


def _record(kind: type[Any], value: Any, where: str) -> Any:
    """Read an object of the keys and types of a dataclass."""
    _check_keys(value, {f.name for f in fields(kind)}, where)
    for field in fields(kind):
        content = value[field.name]
        _expect(fits(content, str(field.type)), f"{where}.{field.name} is {content!r:.60}, not {field.type}")
        if isinstance(content, int | float):
            _expect(abs(content) < 2**63, f"{where}.{field.name} is too large")
    return kind(**value)


def _check_keys(value: Any, names: set[str], where: str) -> None:
    _expect(isinstance(value, dict), f"{where} is not an object")
    missing, unknown = sorted(names - set(value)), sorted(set(value) - names)
    _expect(not missing, f"{where} has no {', '.join(missing)}")
    _expect(not unknown, f"{where} has the unknown key {unknown[0]!r:.40}" if unknown else "")


def _expect(right: bool, otherwise: str) -> None:
    if not right:
        raise _Wrong(otherwise)


def _is_sha256(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _is_one_name(name: str) -> bool:
    return bool(name) and name.isprintable() and not name.startswith(".") and not re.search(r"[/\\:]", name)


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _number(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: _is_whole(value, low, high)


def _numbers(low: int, high: int, *, least: int = 1) -> Callable[[Any], bool]:
    """Allow up to a hundred whole numbers, and ``least`` of them."""
    return lambda value: (
        isinstance(value, list) and least <= len(value) <= 100 and all(_is_whole(v, low, high) for v in value)
    )


def _names(value: Any) -> bool:
    """Allow none, or up to a hundred names."""
    if value is None:
        return True
    return isinstance(value, list) and len(value) <= 100 and all(isinstance(v, str) and len(v) <= 200 for v in value)


# The arguments of a benchmark that decide its figures, with what a lock may say of each. The bounds keep a lock of
# somebody else from asking this machine for the impossible.
SETTINGS: Mapping[str, Callable[[Any], bool]] = {
    "runtimes": _names,
    "baselines": _names,
    "competitors": _names,
    "competitor_models": _names,
    "reference_models": _names,
    "pruning_steps": lambda value: isinstance(value, bool),
    "device": lambda value: value in ("cpu", "cuda"),
    "threads": _numbers(1, 4096),
    "batch_sizes": _numbers(1, 65_536),
    "lengths": _numbers(1, 65_536, least=0),
    "padded_teacher": lambda value: isinstance(value, bool),
    "rounds": _number(3, 10_000),
    "seed": _number(-(2**63), 2**63),
    "metric": lambda value: value is None or isinstance(value, str) and len(value) <= 100,
    "max_length": _number(0, 1_000_000),
    "together": _number(0, 10_000),
}
# What is found again by its hash, or changes no figure.
NOT_KEPT = (
    "teacher",
    "models",
    "controls",
    "data",
    "train",
    "output",
    "study",
    "budget",
    "data_name",
    "command",
    "force",
    "progress",
)
