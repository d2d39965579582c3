"""Reporting stage: write results as ``report.html``, ``report.md`` and ``report.json``."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from compress.benchmarking.results.files import read_results
from compress.benchmarking.results.schema import Measurement
from compress.data import TextSource, content_sha256, open_source, read_examples
from compress.errors import CompressError
from compress.escaping.characters import visible
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
    write_atomically,
)
from compress.models.training_log import read_training
from compress.reporting.cost import PriceList
from compress.reporting.curves import CURVE_NAME, read_curve
from compress.reporting.page import locks_beside, machine, view
from compress.reporting.rendering import HTML_NAME, MARKDOWN_NAME, render

JSON_NAME = "report.json"
_PAGES = (HTML_NAME, MARKDOWN_NAME, JSON_NAME)


def report(
    results: Sequence[str | Path],
    output: str | Path,
    *,
    curves: Sequence[str | Path] = (),
    title: str = "",
    max_accuracy_drop: float = 1.0,
    prices: PriceList = PriceList(),
    texts: Sequence[TextSource | str | Path] = (),
    force: bool = False,
) -> Path:
    """Write ``report.html``, ``report.md`` and ``report.json`` into ``output`` and return the page's path.

    Appends the Markdown to ``$GITHUB_STEP_SUMMARY`` where that is set.

    Args:
        results: ``.jsonl`` files of ``compress benchmark``; hosts may differ, but are never compared.
        curves: ``metrics.jsonl`` of trainings and ``pruning_curve.csv`` of ``compress prune``, or the model directories
            that hold them.
        title: heading; default the study's name, else the data's.
        max_accuracy_drop: the budget that verdicts are about, in points.
        prices: what an hour of each machine costs, for the table of costs.
        texts: the test data (files, or sources of :func:`compress.data.open_source`), whose texts the page then shows
            beside the rows that changed. They are written to the page only.

    Raises:
        CompressError: a file is missing or not what it should be, or the output exists, as a report or as
            a model.
    """
    target = output_path(output)
    if target.is_file():
        raise CompressError(f"{target} is a file; -o names a directory for {', '.join(_PAGES)}")
    keep_apart([target / name for name in _PAGES], [*results, *curves])
    _check_files(target, force)
    if not math.isfinite(max_accuracy_drop) or max_accuracy_drop < 0:
        raise CompressError(
            f"--max-accuracy-drop {max_accuracy_drop:g} is not a number of points; type 0 or more, such as 1.0"
        )
    lines = read_results(results)
    folders = {path: [path / METRICS_NAME, path / CURVE_NAME] for path in map(Path, curves)}
    files = [file for path, held in folders.items() for file in list(filter(Path.is_file, held)) or [path]]
    page = view(
        lines,
        title=title,
        budget_points=max_accuracy_drop,
        curves=[read_curve(file) for file in files if file.suffix != ".jsonl"],
        logs=[read_training(file) for file in files if file.suffix == ".jsonl"],
        locks=locks_beside(results),
        prices=prices,
        texts=_read_texts(texts, lines),
    )
    written = {
        HTML_NAME: render("report.html.j2", page),
        MARKDOWN_NAME: render("report.md.j2", page),
        JSON_NAME: visible(json.dumps(machine(page), indent=1, ensure_ascii=False, allow_nan=False)) + "\n",
    }
    try:
        with alone(target / HTML_NAME):
            _check_files(target, force)
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


def _read_texts(given: Sequence[TextSource | str | Path], lines: Sequence[Measurement]) -> dict[str, list[str]]:
    """Return the texts of every set by its content hash; a set that was not measured is refused."""
    measured = {line.data_sha256: line.data for line in lines}
    found = {}
    for one in given:
        source = open_source(one, role="test", labelled=True) if isinstance(one, str | Path) else one
        examples = read_examples(source)
        sha256 = content_sha256(examples)
        if sha256 not in measured:
            known = ", ".join(f"{name} ({known[:12]})" for known, name in measured.items())
            raise CompressError(
                f"{source.name} holds other rows (sha256 {sha256[:12]}) than were measured: {known}; give --texts "
                "the test file of the benchmark, with the same columns"
            )
        found[sha256] = [e.text if e.text_pair is None else f"{e.text} / {e.text_pair}" for e in examples]
    return found
