"""Result files: flat JSON lines, one for each (model, runtime, device, threads, length, padding, batch size).

``compress benchmark`` writes them, ``report`` and ``check`` read them, ``benchmarks/results`` keeps them. Every line
stands on its own. Examples are known by their row number only; no line holds a text. The scripts in ``benchmarks``
write lines with fields of their own.
"""

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from compress.benchmarking.results.schema import SCHEMA, Measurement, faults
from compress.errors import refuse
from compress.files import RESULTS_LIMIT_BYTES, parse_json, read_text
from compress.host import describe_host, library_versions, typed_command
from compress.models.output_dir import unwritable, write_atomically, write_json_lines

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# In 2 speed-ups were ratios of the wall clock, in 3 turns began with one call: their speeds are not compared with 4's.
SCHEMAS = (2, 3, SCHEMA)

# What makes two lines the same configuration, whatever the batch size and the time.
KEY = (
    "data_sha256",
    "host_id",
    "device",
    "threads",
    "length",
    "padding",
    "max_length",
    "model",
    "runtime",
    "model_sha256",
)


@dataclass(frozen=True)
class Result:
    """The lines of one configuration by rising batch size.

    Latency is reported at the smallest batch size, throughput at the largest.
    """

    lines: tuple[Measurement, ...]

    @property
    def small_batch(self) -> Measurement:
        return self.lines[0]

    @property
    def large_batch(self) -> Measurement:
        return self.lines[-1]

    def at(self, batch_size: int) -> Measurement | None:
        """Return the line of a batch size; None where it was not measured, as large ones of reference models."""
        return next((line for line in self.lines if line.batch_size == batch_size), None)


def smallest_batch(rows: Iterable[Result]) -> int:
    """Return the smallest batch size that was measured of any configuration; 0 of none."""
    return min((row.small_batch.batch_size for row in rows), default=0)


def largest_batch(rows: Iterable[Result]) -> int:
    """Return the largest batch size at which throughput was measured, of the configuration with most sizes."""
    return max(rows, key=lambda row: len(row.lines)).large_batch.batch_size


def of_smallest_batch(rows: Sequence[Result]) -> list[Measurement]:
    """Return the lines of the smallest batch size that was measured of any configuration, of those that have it."""
    smallest = smallest_batch(rows)
    return [row.small_batch for row in rows if row.small_batch.batch_size == smallest]


def results_of(lines: Iterable[Measurement]) -> list[Result]:
    """Gather lines into results in the order they come; of a batch size that was measured twice the newest counts.

    A newer run of fewer batch sizes leaves what is known of the others as it is, so that their limits are still judged.

    Pruning steps are no results: they only serve the breakdown of a speed-up.
    """
    found = []
    for group in grouped(
        (line for line in lines if line.kind != "pruning-step"),
        attrgetter(*KEY),
    ).values():
        by_size = {line.batch_size: line for line in sorted(group, key=attrgetter("created"))}
        found.append(Result(tuple(by_size[size] for size in sorted(by_size))))
    return found


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by their keys, both in the order they come."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def is_control_of(control: Measurement, models: Iterable[Measurement]) -> bool:
    """Tell whether a line is of a control of one of the models, whose lines share a recipe.

    Models name their control. Where none does, as it was measured in another run, it names one or shares their recipe.
    """
    models = list(models)
    if control.kind != "control":
        return False
    if named := {line.control for line in models if line.control}:
        return control.model in named
    return any(control.control_of == line.model or control.recipe == line.recipe != "" for line in models)


def write_results(path: Path, lines: Iterable[Measurement]) -> None:
    """Write lines whole or not at all.

    Raises:
        ValueError: a line is not as :mod:`compress.benchmarking.results.schema` says.
    """
    found = [line.to_json() for line in lines]
    for line in found:
        if wrong := faults(line):
            raise ValueError(f"a line of results is not as its schema says: {', '.join(wrong)}")
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise unwritable(path, error) from None


def read_results(paths: Sequence[str | Path]) -> list[Measurement]:
    """Read the lines of all files in order.

    Raises:
        CompressError: a file is missing, empty, damaged or of another kind.
    """
    lines: list[Measurement] = []
    for path in map(Path, paths):
        exists = os.path.lexists(path)
        refuse((not exists, f"{path} does not exist; make it with 'compress benchmark ... -o {path}'"))
        lines += parse_results(read_text(path, RESULTS_LIMIT_BYTES), str(path))
    for group in grouped(lines, attrgetter("data_sha256")).values():
        differ = len({line.data_rows for line in group}) > 1  # whose predictions could not be paired
        refuse((differ, f"lines of {group[0].data}, of one data_sha256, have different data_rows; measure again"))
    return lines


def parse_results(text: str, path: str) -> list[Measurement]:
    """Read the lines of a file's text; ``path`` is what the file is called when something is wrong with it.

    Raises:
        CompressError: it is empty, damaged or of another kind.
    """
    is_indented = text.startswith("{\n")  # as locks and reports are; a line is a whole object
    refuse((is_indented, f"{path} is a lock or a report and holds no results; give the .jsonl file beside it"))
    found = [_parse(line, number, path) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    refuse((not found, f"{path} holds no results; make it with 'compress benchmark ... -o {path}'"))
    return found


def _parse(text: str, number: int, path: str) -> Measurement:
    line = parse_json(text, f"{path}, line {number}")
    schema = line.get("schema", SCHEMA) if isinstance(line, dict) else SCHEMA
    wrong = faults(line)
    shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    where = f"{path}, line {number}"
    refuse(
        (
            schema not in SCHEMAS,
            f"{where} has schema {schema!r:.20}; this compress reads {SCHEMA}: run the benchmark again",
        ),
        (wrong, f"{where} is not a result of compress benchmark: {shown}"),
    )
    return Measurement(**line)


def host_id(host: Mapping[str, Any]) -> str:
    """Return a short fingerprint of what decides speed: CPU, instruction sets, cores, a quota of them, system, GPU."""
    deciding = {key: host.get(key) for key in ("cpu", "cpu_family_model", "cpu_flags", "cores", "system", "gpu")}
    if quota := host.get("cpu_quota"):
        deciding["cpu_quota"] = quota
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]


def provenance() -> dict[str, Any]:
    """Return by which command, when, where and with which versions a line of a script was measured."""
    host = describe_host()
    return {
        "command": typed_command("python"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host,
        "host_id": host_id(host),
        "versions": library_versions(),
    }


def replace_line(path: Path, line: Mapping[str, Any], *keys: str) -> None:
    """Write a line to a file of JSON lines, in place of the one that has the same values of these fields."""
    known = map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.is_file() else [])
    write_json_lines(path, [*(one for one in known if any(one[key] != line[key] for key in keys)), line])
