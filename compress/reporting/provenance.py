"""Provenance of results: runs with their commands, hosts and versions, models with their hashes, lock files."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from compress import recipes
from compress.benchmarking.lockfile import lock_path, read_lock
from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import NONE, plural
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.files import read_text

_LIBRARIES_SHOWN = ("compress", "torch", "transformers", "onnxruntime", "openvino", "python")
_LARGEST_LOCK_SHOWN = 200_000


@dataclass(frozen=True)
class Origin:
    """One run of the benchmark: what was typed, when, on what."""

    facts: list[tuple[str, str]]
    command: str


@dataclass(frozen=True)
class Known:
    """A model that was measured: its recipe, shape and hashes."""

    model: str
    recipe: str
    shape: str
    seed: str
    model_sha256: str
    tokenizer_sha256: str


@dataclass(frozen=True)
class ShownLock:
    """The lock file of a result file; ``text`` is empty where it is too long to show, ``replay`` runs it again."""

    name: str
    text: str = field(metadata={"page_only": True})
    replay: str = field(metadata={"page_only": True})


def origins(lines: Iterable[Measurement]) -> list[Origin]:
    """Return every run among the lines."""
    runs = grouped(lines, attrgetter("created", "host_id", "command", "data_sha256")).values()
    return [Origin(_facts(run[0]), run[0].command) for run in runs]


def _facts(line: Measurement) -> list[tuple[str, str]]:
    host, versions = line.host, line.versions
    flags = ", ".join(host.get("cpu_flags", [])) or "none of note"
    quota = f", of which a container has {host['cpu_quota']:g}" if host.get("cpu_quota") else ""
    libraries = ", ".join(f"{name} {versions[name]}" for name in _LIBRARIES_SHOWN if name in versions)
    return [
        ("When", line.created),
        ("Data", f"{line.data}, {plural(line.data_rows, 'row')}, sha256 {line.data_sha256}"),
        ("Host", f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores{quota}, instruction sets: {flags}"),
        ("System", str(host.get("system", "unknown"))),
        ("GPU", ", ".join(map(str, host.get("gpu") or [])) or "none"),
        ("Versions", libraries),
        ("Rounds of the teacher and seed", f"{plural(line.rounds, 'round')}, seed {line.seed}"),
        ("Rows cut to", plural(line.max_length, "token")),
    ]


def known_models(lines: Iterable[Measurement]) -> list[Known]:
    """Return every model among the lines that is made of files, once; pruning steps, which nobody has, are left out."""
    kept = (line for line in lines if line.kind != "pruning-step")
    return list({(line.model, line.model_sha256): _known(line) for line in kept}.values())


def _known(line: Measurement) -> Known:
    widths = {"heads": line.heads_per_layer, "width": line.ffn_per_layer}
    return Known(
        line.model,
        line.recipe or NONE,
        "; ".join(f"{noun} {'/'.join(map(str, each))}" for noun, each in widths.items() if each) or NONE,
        NONE if line.training_seed is None else str(line.training_seed),
        line.model_sha256 or NONE,
        line.tokenizer_sha256 or NONE,
    )


def known_student(name: str) -> recipes.StudentRecipe | None:
    """Return the student recipe of a name; None where there is none here, or where it has since been broken."""
    if name not in recipes.recipe_names("students"):  # names come from result files, and no other file is opened
        return None
    try:
        found: recipes.StudentRecipe = recipes.load_recipe("students", name)
    except CompressError:
        return None
    return found


def left_out(lines: Iterable[Measurement]) -> list[tuple[str, str]]:
    """Return what was asked for but could not be measured, with the reason."""
    found = {(str(one["name"]), str(one["reason"])): None for line in lines for one in line.left_out}
    return list(found)


def locks_beside(results: Sequence[str | Path]) -> list[ShownLock]:
    """Return the lock files of result files."""
    found = []
    for path in map(lock_path, map(Path, results)):
        if path.is_file():
            shown = path.stat().st_size <= _LARGEST_LOCK_SHOWN
            found.append(ShownLock(path.name, read_text(path) if shown else "", _replay(path)))
    return found


def _replay(path: Path) -> str:
    """Return the command that runs a lock again, with ``--train`` if it names training rows."""
    try:
        names_train = read_lock(path).train is not None
    except CompressError:  # a report of results does without their lock
        names_train = False
    train = ["--train", "FILE"] if names_train else []
    return shlex.join(["compress", "replay", path.name, "--data", "FILE", *train, "--root", "DIR", "-o", "FILE"])
