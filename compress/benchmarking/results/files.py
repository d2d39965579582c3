"""Result files: flat JSON lines, one for each (model, runtime, device, threads, length, padding, batch size).

``compress benchmark`` writes them, ``report`` and ``check`` read them, ``benchmarks/results`` keeps them. Every line
stands on its own. Examples are known by their row number only; no line holds a text. The scripts in ``benchmarks``
write lines with fields of their own.
"""

import hashlib
import html
import importlib
import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, TypeVar

from compress.benchmarking.results import formatting
from compress.benchmarking.results.schema import FIELDS, SCHEMA, Measurement
from compress.errors import CompressError, MissingPackage, refuse
from compress.escaping import one_line
from compress.files import RESULTS_LIMIT_BYTES, parse_json, read_text, write_atomically
from compress.models.output_dir import unwritable

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# In 2 speed-ups were ratios of the wall clock, in 3 turns began with one call, in 4 no labels were made and the clocks'
# own time counted: speeds of different schemas are not compared.
SCHEMAS = (2, 3, 4, SCHEMA)

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


@dataclass(frozen=True, repr=False)
class Results(Sequence[Measurement]):
    """Result lines in their order, checked: what ``compress.benchmark`` returns, and what files hold.

    ``files`` are those that they were read from, or written to.
    """

    lines: tuple[Measurement, ...]
    files: tuple[Path, ...] = field(default=(), compare=False)

    @classmethod
    def open(cls, *given: "str | os.PathLike[str] | Results") -> Self:
        """Read the lines of files, in order; results that are open already come as they are.

        Raises:
            CompressError: a file is missing, empty, damaged or of another kind.
        """
        lines: list[Measurement] = []
        files: list[Path] = []
        for one in given:
            if isinstance(one, Results):
                lines += one.lines
                files += one.files
                continue
            is_path = isinstance(one, str | os.PathLike)
            missing = f"{one} does not exist; make it with 'compress benchmark ... -o {one}'"
            refuse(
                (not is_path, f"{one!r:.60} is no file of results; give a .jsonl of benchmark, or what it returns"),
                (is_path and not os.path.lexists(one), missing),
            )
            lines += parse_results(read_text(Path(one), RESULTS_LIMIT_BYTES), str(one))
            files.append(Path(one))
        for group in grouped(lines, attrgetter("data_sha256")).values():
            differ = len({line.data_rows for line in group}) > 1  # whose predictions could not be paired
            refuse((differ, f"lines of {group[0].data}, of one data_sha256, have different data_rows; measure again"))
        return cls(tuple(lines), tuple(files))

    @cached_property
    def configurations(self) -> list[Result]:
        return results_of(self.lines)

    def report(self, output: str | Path, **options: Any) -> Path:
        """Write them as a page; ``options`` are those of ``compress.report``. Return the page in HTML."""
        from compress.requests.measuring import Report

        return Report((self,), output, **options).run()

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each line and a column for each field.

        Raises:
            MissingPackage: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise MissingPackage(error) from None
        return pandas.DataFrame([{name: getattr(line, name) for name in FIELDS} for line in self.lines])

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: Any) -> Any:
        return self.lines[index]

    def __repr__(self) -> str:
        names = dict.fromkeys(line.model for line in self.lines)
        return f"<Results: {formatting.plural(len(self.lines), 'line')} of {', '.join(names)}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: one row a configuration, at its smallest batch."""
        shown = [("model", "runtime", "batch", "metric", "points to teacher", "speed-up", "p50", "disk")]
        for line in (row.small_batch for row in self.configurations):
            kind, points = formatting.kind_text(line), formatting.NONE
            if line.difference and not line.is_reference:
                points = "{} ({} to {})".format(*map(formatting.points, line.difference))
            shown.append(
                (
                    f"{line.model} ({kind})" if kind else line.model,
                    line.runtime,
                    str(line.batch_size),
                    f"{line.metric_name} {formatting.shown_metric(line)}" if line.metric_name else formatting.NONE,
                    points,
                    "×1" if line.is_reference else formatting.with_span(line.speedups, formatting.times),
                    formatting.milliseconds(line.text_p50_ms.value),
                    formatting.megabytes(line.size_bytes),
                )
            )
        rows = ["".join(f"<td>{html.escape(one_line(cell))}</td>" for cell in row) for row in shown]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def smallest_batch(rows: Iterable[Result]) -> int:
    """Return the smallest batch size that was measured of any configuration; 0 of none."""
    return min((row.small_batch.batch_size for row in rows), default=0)


def largest_batch(rows: Iterable[Result]) -> int:
    """Return the largest batch size at which throughput was measured, of the configuration with most sizes."""
    return max(rows, key=lambda row: len(row.lines)).large_batch.batch_size


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
        Measurement.read(line)
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise unwritable(path, error) from None


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
    where = f"{path}, line {number}"
    line = parse_json(text, where)
    refuse((not isinstance(line, dict), f"{where} is not a result of compress benchmark: it is not an object"))
    schema = line.get("schema", SCHEMA)
    another = f"{where} has schema {schema!r:.20}; this compress reads {SCHEMA}: run the benchmark again"
    refuse((schema not in SCHEMAS, another))
    try:
        return Measurement.read(line)
    except ValueError as error:
        wrong = error.args
    missing = [one.name for one in FIELDS.values() if not one.optional and one.name not in line]
    nothing = f"{where} is not a result of compress benchmark; give the .jsonl file that its -o names"
    refuse((len(missing) > len(FIELDS) / 3, nothing))
    shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    raise CompressError(f"{where} is not a result of compress benchmark: {shown}")


def host_id(host: Mapping[str, Any]) -> str:
    """Return a short fingerprint of what decides speed: CPU, instruction sets, cores, a quota of them, system, GPU."""
    deciding = {key: host.get(key) for key in ("cpu", "cpu_family_model", "cpu_flags", "cores", "system", "gpu")}
    if quota := host.get("cpu_quota"):
        deciding["cpu_quota"] = quota
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]
