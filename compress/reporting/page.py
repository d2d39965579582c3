"""The report as one view, which the HTML and Markdown templates render, and as data for programs.

``report.json`` holds what the page shows. Its shape is that of the dataclasses behind the page. Two things differ:
pictures and what is for the page alone are left out, and the cells of a table's row are named by its columns. A cell
has ``text`` and ``small`` as shown, and ``value`` with its interval ``low`` to ``high`` as numbers or null.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from compress.benchmarking.lockfile import lock_path, read_lock
from compress.benchmarking.results.files import grouped, results_of
from compress.benchmarking.results.formatting import NONE, plural
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.files import read_text
from compress.models.training_log import TrainingLog
from compress.reporting.cost import Costs, PriceList, costs_of, parse_prices
from compress.reporting.curves import Chart, Trainings, trainings_of
from compress.reporting.sections import Section, gather, section
from compress.reporting.tables import PAGE_ONLY, ReportTable, ResultsTable, repeats

FORMAT = 1  # of report.json
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
    text: str = field(metadata=PAGE_ONLY)
    replay: str = field(metadata=PAGE_ONLY)


@dataclass(frozen=True)
class Page:
    """Everything that is shown."""

    title: str
    budget_points: float
    hosts: int
    sections: list[Section]
    curves: Sequence[Chart]
    trainings: Trainings | None
    costs: Costs | None
    repeats: ReportTable | None
    origins: list[Origin]
    models: list[Known]
    left_out: list[tuple[str, str]]
    locks: Sequence[ShownLock]


def view(
    lines: Sequence[Measurement],
    *,
    title: str = "",
    budget_points: float = 1.0,
    curves: Sequence[Chart] = (),
    logs: Sequence[TrainingLog] = (),
    locks: Sequence[ShownLock] = (),
    prices: PriceList | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> Page:
    """Return the report of result lines.

    Args:
        texts: the rows of a data set by its content hash; they are shown on the page and nowhere else.

    Raises:
        CompressError: a price is for a machine that was not measured.
    """
    measured = gather(lines, budget_points)
    prices = prices or PriceList()
    best = [line for part in measured for line in part.leaders.models]
    studies = sorted({line.study for line in lines if line.study})
    left_out = [(str(one["name"]), str(one["reason"])) for line in lines for one in line.left_out]
    return Page(
        title=title or ", ".join(studies) or f"Compression on {lines[0].data}",
        budget_points=budget_points,
        hosts=len({line.host_id for line in lines}),
        sections=[section(part, texts or {}) for part in measured],
        curves=curves,
        trainings=trainings_of(logs, lines),
        costs=costs_of(results_of(lines), best, parse_prices(prices.hourly), prices.currency),
        repeats=repeats(lines),
        origins=origins(lines),
        models=_models(lines),
        left_out=list(dict.fromkeys(left_out)),
        locks=locks,
    )


def origins(lines: Iterable[Measurement]) -> list[Origin]:
    """Return every run among the lines."""
    found = []
    for line, *_ in grouped(lines, attrgetter("created", "host_id", "command", "data_sha256")).values():
        host, versions = line.host, line.versions
        flags = ", ".join(host.get("cpu_flags", [])) or "none of note"
        quota = f", of which a container has {host['cpu_quota']:g}" if host.get("cpu_quota") else ""
        facts = {
            "When": line.created,
            "Data": f"{line.data}, {plural(line.data_rows, 'row')}, sha256 {line.data_sha256}",
            "Host": f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores{quota}, instruction sets: {flags}",
            "System": str(host.get("system", "unknown")),
            "GPU": ", ".join(map(str, host.get("gpu") or [])) or "none",
            "Versions": ", ".join(f"{name} {versions[name]}" for name in _LIBRARIES_SHOWN if name in versions),
            "Rounds of the teacher and seed": f"{plural(line.rounds, 'round')}, seed {line.seed}",
            "Rows cut to": plural(line.max_length, "token"),
        }
        found.append(Origin(list(facts.items()), line.command))
    return found


def _models(lines: Iterable[Measurement]) -> list[Known]:
    """Return every model among the lines that is made of files, once; pruning steps, which nobody has, are left out."""
    found = {}
    for line in lines:
        widths = {"heads": line.heads_per_layer, "width": line.ffn_per_layer}
        shape = "; ".join(f"{noun} {'/'.join(map(str, each))}" for noun, each in widths.items() if each)
        seed = "" if line.training_seed is None else str(line.training_seed)
        facts = (line.recipe, shape, seed, line.model_sha256, line.tokenizer_sha256)
        if line.kind != "pruning-step":
            found[line.model, line.model_sha256] = Known(line.model, *(fact or NONE for fact in facts))
    return list(found.values())


def locks_beside(results: Sequence[str | Path]) -> list[ShownLock]:
    """Return the lock files of result files, with the command that runs each again."""
    found = []
    for path in filter(Path.is_file, map(lock_path, map(Path, results))):
        shown = path.stat().st_size <= _LARGEST_LOCK_SHOWN
        try:
            train = [] if read_lock(path).train is None else ["--train", "FILE"]
        except CompressError:  # a report of results does without their lock
            train = []
        replay = ["compress", "replay", path.name, "--data", "FILE", *train, "--root", "DIR", "-o", "FILE"]
        found.append(ShownLock(path.name, read_text(path) if shown else "", shlex.join(replay)))
    return found


def machine(page: Page) -> dict[str, Any]:
    """Return a report as plain data for JSON."""
    return {"format": FORMAT, **_plain(page)}


def _plain(value: Any) -> Any:
    if isinstance(value, ResultsTable):
        keys = [column.key for column in value.columns]
        rows = [_plain(row) | {"cells": dict(zip(keys, _plain(row.cells), strict=True))} for row in value.rows]
        return {"columns": _plain(value.columns), "rows": rows}
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value) if "page_only" not in one.metadata}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
