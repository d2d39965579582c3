"""Provenance of results: runs with their commands, hosts and versions, models with their hashes, lock files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compress import recipes
from compress.benchmarking.lockfile import lock_path
from compress.benchmarking.results.formatting import NONE, plural
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError

_LIBRARIES_SHOWN = ("compress", "torch", "transformers", "onnxruntime", "openvino", "python")
_HASH_SHOWN = 12
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
    """A lock file that lies beside the results; ``text`` is empty where it is too long to show."""

    name: str
    text: str = field(metadata={"page_only": True})


def origins(lines: Iterable[Measurement]) -> list[Origin]:
    """Return every run among the lines."""
    found: dict[tuple[Any, ...], Origin] = {}
    for line in lines:
        key = (line.created, line.host_id, line.command, line.data_sha256, line.device)
        if key not in found:
            found[key] = Origin(_facts(line), line.command)
    return list(found.values())


def _facts(line: Measurement) -> list[tuple[str, str]]:
    host, versions = line.host, line.versions
    flags = ", ".join(host.get("cpu_flags", [])) or "none of note"
    libraries = ", ".join(f"{name} {versions[name]}" for name in _LIBRARIES_SHOWN if name in versions)
    return [
        ("When", line.created),
        ("Data", f"{line.data}, {plural(line.data_rows, 'row')}, sha256 {line.data_sha256}"),
        ("Host", f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores, instruction sets: {flags}"),
        ("System", str(host.get("system", "unknown"))),
        ("GPU", ", ".join(map(str, host.get("gpu") or [])) or "none"),
        ("Versions", libraries),
        ("Rounds and seed", f"{plural(line.rounds, 'round')}, seed {line.seed}"),
        ("Rows cut to", plural(line.max_length, "token")),
    ]


def known_models(lines: Iterable[Measurement]) -> list[Known]:
    """Return every model among the lines that is made of files, once; pruning steps, which nobody has, are left out."""
    found: dict[tuple[str, str], Known] = {}
    for line in lines:
        if line.kind == "pruning-step":
            continue
        heads, widths = line.heads_per_layer, line.ffn_per_layer
        shape = [f"{noun} {'/'.join(map(str, each))}" for noun, each in (("heads", heads), ("width", widths)) if each]
        seed = NONE if line.training_seed is None else str(line.training_seed)
        found[line.model, line.model_sha256] = Known(
            line.model,
            line.recipe or NONE,
            "; ".join(shape) or NONE,
            seed,
            line.model_sha256 or NONE,
            line.tokenizer_sha256 or NONE,
        )
    return list(found.values())


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
    """Return the locks that lie beside result files."""
    found = []
    for path in map(lock_path, map(Path, results)):
        if path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise CompressError(f"{path} cannot be read as a lock ({error}); run the benchmark again") from None
            found.append(ShownLock(path.name, text if len(text) <= _LARGEST_LOCK_SHOWN else ""))
    return found


def short(sha256: str) -> str:
    """Return the part of a hash that people compare."""
    return sha256[:_HASH_SHOWN]
