"""Reporting stage: write results as ``report.html``, ``report.md`` and ``report.json``."""

import json
from collections.abc import Sequence
from pathlib import Path

from compress.benchmarking.results.files import Results
from compress.benchmarking.results.schema import Measurement
from compress.data import content_sha256, open_rows, read_examples
from compress.errors import refuse
from compress.escaping.characters import visible
from compress.files import write_atomically
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
from compress.models.training_log import read_training
from compress.reporting.cost import PriceList
from compress.reporting.curves import CURVE_NAME, read_curve
from compress.reporting.page import locks_beside, machine, view
from compress.reporting.rendering import HTML_NAME, MARKDOWN_NAME, render
from compress.requests.reporting import Report

JSON_NAME = "report.json"
_PAGES = (HTML_NAME, MARKDOWN_NAME, JSON_NAME)


def report(request: Report) -> Path:
    """Write the pages of a request and return that in HTML.

    Raises:
        CompressError: a file is missing or not what it should be, or the output exists, as a report or as
            a model.
    """
    target = output_path(str(request.output or ""))
    refuse((target.is_file(), f"{target} is a file; -o names a directory for {', '.join(_PAGES)}"))
    results = Results.open(*request.results)
    keep_apart([target / name for name in _PAGES], [*results.files, *request.curves])
    _check_files(target, request.force)
    lines = results.lines
    folders = {path: [path / METRICS_NAME, path / CURVE_NAME] for path in map(Path, request.curves)}
    files = [file for path, held in folders.items() for file in list(filter(Path.is_file, held)) or [path]]
    page = view(
        lines,
        title=request.title,
        budget_points=request.max_accuracy_drop,
        curves=[read_curve(file) for file in files if file.suffix != ".jsonl"],
        logs=[read_training(file) for file in files if file.suffix == ".jsonl"],
        locks=locks_beside(results.files),
        prices=PriceList(request.prices, request.currency),
        texts=_read_texts(request, lines),
    )
    written = {
        HTML_NAME: render("report.html.j2", page),
        MARKDOWN_NAME: render("report.md.j2", page),
        JSON_NAME: visible(json.dumps(machine(page), indent=1, ensure_ascii=False, allow_nan=False)) + "\n",
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
    """Refuse a directory that another command made, and pages that are not to be replaced."""
    refuse_other_outputs(target, "-o a directory for the report")
    for name in _PAGES:
        check_file(target / name, force=force)


def _read_texts(request: Report, lines: Sequence[Measurement]) -> dict[str, list[str]]:
    """Return the texts of every set by its content hash; a set that was not measured is refused."""
    measured = {line.data_sha256: line.data for line in lines}
    found = {}
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
