"""Reporting stage: write results as ``report.html``, ``report.md`` and ``report.json``."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compress.benchmarking.lockfile import lock_path, read_lock
from compress.benchmarking.results.files import Results
from compress.benchmarking.results.formatting import NONE, plural
from compress.benchmarking.results.schema import Measurement
from compress.data import content_sha256, open_rows, read_examples
from compress.errors import CompressError, refuse
from compress.files import read_text, write_atomically
from compress.models.manifest import METRICS_NAME
from compress.models.output_dir import (
    alone,
    append_summary,
    check_file,
    keep_apart,
    output_path,
    refuse_other_outputs,
    set_aside,
    unwritable,
)
from compress.models.training_log import TrainingLog, read_training
from compress.reporting.curves import CURVE_NAME, read_curve, trainings_of
from compress.reporting.pages import HTML_NAME, JSON_NAME, MARKDOWN_NAME, PAGE_ONLY, Cell, ReportTable, as_json
from compress.reporting.rendering import render
from compress.reporting.sections import Section, gather, section
from compress.reporting.svg import Picture
from compress.reporting.tables import Costs, costs_of, parse_prices, repeats
from compress.requests.measuring import Report

PAGES = (HTML_NAME, MARKDOWN_NAME, JSON_NAME)
_LIBRARIES_SHOWN = ("compress", "torch", "transformers", "onnxruntime", "openvino", "python")
_LARGEST_LOCK_SHOWN = 200_000


def report(request: Report) -> Path:
    """Write the pages of a request and return that in HTML.

    Raises:
        CompressError: a file is missing or not what it should be, or the output exists, as a report or as
            a model.
    """
    results = Results.open(*request.results)
    target = output_path(str(request.output or ""))
    refuse((target.is_file(), f"{target} is a file; -o names a directory for {', '.join(PAGES)}"))
    keep_apart([target / name for name in PAGES], [*results.files, *request.curves])
    _check_files(target, request.force)
    folders = {path: [path / METRICS_NAME, path / CURVE_NAME] for path in map(Path, request.curves)}
    files = [file for path, held in folders.items() for file in list(filter(Path.is_file, held)) or [path]]
    page = view(
        results,
        title=request.title,
        budget_points=request.max_accuracy_drop,
        curves=[read_curve(file) for file in files if file.suffix != ".jsonl"],
        logs=[read_training(file) for file in files if file.suffix == ".jsonl"],
        prices=request.prices,
        currency=request.currency,
        texts=_read_texts(request, results.lines),
    )
    written = {
        HTML_NAME: render("report.html.j2", page=page),
        MARKDOWN_NAME: render("report.md.j2", page=page),
        JSON_NAME: as_json(page),
    }
    try:
        with alone(target / HTML_NAME):
            _check_files(target, request.force)
            for name, text in written.items():
                set_aside(target / name)
                write_atomically(target / name, text)
    except OSError as error:
        raise unwritable(error.filename or target, error) from None
    append_summary(written[MARKDOWN_NAME])
    return target / HTML_NAME


def _check_files(target: Path, force: bool) -> None:
    refuse_other_outputs(target, "-o a directory for the report")
    for name in PAGES:
        check_file(target / name, force=force)


def _read_texts(request: Report, lines: Sequence[Measurement]) -> dict[str, list[str]]:
    """Return the texts of every set by its content hash; a set that was not measured is refused."""
    measured, found = {line.data_sha256: line.data for line in lines}, {}
    for given in request.texts:
        source = open_rows(given, role="test", **request.columns)
        examples = read_examples(source)
        sha256 = content_sha256(examples)
        known = ", ".join(f"{name} ({known[:12]})" for known, name in measured.items())
        refuse(
            (
                sha256 not in measured,
                f"{source.name} holds other rows (sha256 {sha256[:12]}) than were measured: {known}; give --texts "
                "the test file of the benchmark, with the same columns",
            )
        )
        found[sha256] = [e.text if e.text_pair is None else f"{e.text} / {e.text_pair}" for e in examples]
    return found


@dataclass(frozen=True)
class ShownLock:
    """The lock file of a result file; ``text`` is empty where it is too long to show, ``replay`` runs it again."""

    name: str
    text: str = field(metadata=PAGE_ONLY)
    replay: str = field(metadata=PAGE_ONLY)


@dataclass(frozen=True)
class Page:
    """Everything that is shown; ``origins`` are the runs, and ``training_pictures`` those of each model."""

    title: str
    budget_points: float
    hosts: int
    sections: list[Section]
    curves: Sequence[ReportTable]
    trainings: ReportTable | None
    training_pictures: list[list[Picture]] = field(metadata=PAGE_ONLY)
    costs: Costs | None
    repeats: ReportTable | None
    origins: list[Mapping[str, Any]]
    models: ReportTable
    left_out: list[tuple[str, str]]
    locks: Sequence[ShownLock]


def view(
    results: Results,
    *,
    title: str = "",
    budget_points: float = 1.0,
    curves: Sequence[ReportTable] = (),
    logs: Sequence[TrainingLog] = (),
    prices: Sequence[str] = (),
    currency: str = "",
    texts: Mapping[str, Sequence[str]] | None = None,
) -> Page:
    """Return the report of results, with the lock of each file.

    Args:
        texts: the rows of a data set by its content hash; they are shown on the page and nowhere else.

    Raises:
        CompressError: a price is for a machine that was not measured.
    """
    lines = results.lines
    measured = gather(lines, budget_points)
    best = [line for part in measured for line in part.leaders]
    trainings, pictures = trainings_of(logs, lines)
    left_out = dict.fromkeys((str(one["name"]), str(one["reason"])) for line in lines for one in line.left_out)
    return Page(
        title=title or ", ".join(sorted({line.study for line in lines} - {""})) or f"Compression on {lines[0].data}",
        budget_points=budget_points,
        hosts=len({line.host_id for line in lines}),
        sections=[section(part, texts or {}) for part in measured],
        curves=curves,
        trainings=trainings,
        training_pictures=pictures,
        costs=costs_of(results.configurations, best, parse_prices(prices), currency),
        repeats=repeats(lines),
        origins=origins(lines),
        models=_models(lines),
        left_out=list(left_out),
        locks=_locks_beside(results.files),
    )


def origins(lines: Iterable[Measurement]) -> list[Mapping[str, Any]]:
    """Return every run of the benchmark among the lines: the command, and when, on what and where it ran."""
    found: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for line in lines:
        run, host, versions = (line.created, line.host_id, line.command, line.data_sha256), line.host, line.versions
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
        found.setdefault(run, {"command": line.command, "facts": facts})
    return list(found.values())


def _models(lines: Iterable[Measurement]) -> ReportTable:
    """Return every model among the lines that is made of files, once; pruning steps, which nobody has, are left out."""
    rows = {}
    for line in lines:
        widths = {"heads": line.heads_per_layer, "width": line.ffn_per_layer}
        shape = "; ".join(f"{noun} {'/'.join(map(str, each))}" for noun, each in widths.items() if each)
        seed = "" if line.training_seed is None else str(line.training_seed)
        facts = (line.model, line.recipe, shape, seed, line.model_sha256, line.tokenizer_sha256)
        if line.kind != "pruning-step":
            rows[line.model, line.model_sha256] = [Cell(fact or NONE) for fact in facts]
    headings = ["Model", "Recipe", "Left in each layer", "Seed", "sha256 of the model", "sha256 of the tokenizer"]
    return ReportTable("Models, recipes and hashes", headings, list(rows.values()))


def _locks_beside(results: Sequence[Path]) -> list[ShownLock]:
    """Return the lock files of result files, with the command that runs each again."""
    found = []
    for path in filter(Path.is_file, map(lock_path, results)):
        try:
            train = [] if read_lock(path).train is None else ["--train", "FILE"]
        except CompressError:  # a report of results does without their lock
            train = []
        text = read_text(path) if path.stat().st_size <= _LARGEST_LOCK_SHOWN else ""
        replay = ["compress", "replay", path.name, "--data", "FILE", *train, "--root", "DIR", "-o", "FILE"]
        found.append(ShownLock(path.name, text, shlex.join(replay)))
    return found
