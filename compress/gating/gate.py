"""Judge what a request names, write the verdict as text, Markdown, JUnit XML or JSON, and renew the baseline."""

import json
import os
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment

from compress.benchmarking.results.formatting import megabytes, points, shown_metric, table, times
from compress.errors import CompressError, PartlyMade
from compress.escaping import markdown_text, one_line, terminal_text, visible
from compress.files import read_json_table, read_text, write_atomically
from compress.gating.budgets import BudgetFile, GateBudget, read_budgets
from compress.gating.check import Change, GateVerdict, check
from compress.gating.judgement import BROKEN, HOLDS, UNDECIDED
from compress.gating.reference import store_reference
from compress.models.output_dir import check_file, keep_apart, output_path, refuse_other_outputs, unwritable
from compress.requests import local_inputs
from compress.requests.measuring import Check

JSON_SCHEMA = 1
_JSON_KEYS = {"schema", "outcome", "exit_code", "judgements", "notes"}
_XML_HEAD, _SUITE = '<?xml version="1.0" encoding="UTF-8"?>\n', "compress check"
_JUNIT = """\
{% set numbers %}name="{{ suite }}" tests="{{ verdict.judgements | length }}" failures="{{
    verdict.judgements | selectattr("outcome", "equalto", "broken") | list | length }}" errors="0" skipped="{{
    verdict.judgements | selectattr("outcome", "equalto", "undecided") | list | length }}"{% endset %}
<testsuites {{ numbers }}>
  <testsuite {{ numbers }}>
{% for one in verdict.judgements %}
    <testcase classname="{{ one.subject | line }}" name="{{ one.gate }} {{ "%.10g" | format(one.limit) }}" time="0">
{% if one.outcome == "broken" %}
      <failure message="{{ one.sentence | line }}" type="{{ one.gate }}">{{ one.sentence | line }}</failure>
{% elif one.outcome == "undecided" %}
      <skipped message="{{ one.sentence | line }}" />
{% else %}
      <system-out>{{ one.sentence | line }}</system-out>
{% endif %}
    </testcase>
{% endfor %}
{% if verdict.notes %}
    <system-out>{{ verdict.notes | map("line") | join("\n") }}</system-out>
{% endif %}
  </testsuite>
</testsuites>
"""
_IN_TITLES = str.maketrans({":": "%3A", ",": "%2C"})  # of annotations
_MARKS = {HOLDS: "✅", BROKEN: "❌", UNDECIDED: "❔"}
_CHANGE = "{}: metric {} then, {} now, {} points; speed-up {} then, {} now, ratio {}; weights {} then, {} now."
_HEADINGS = {HOLDS: "the budgets hold", BROKEN: "a budget is broken", UNDECIDED: "cannot decide"}


def gate(request: Check) -> GateVerdict:
    """Judge results as asked, and write the verdict's files.

    Raises:
        PartlyMade: the budgets hold, and the baseline cannot be renewed.
        CompressError: for anything about the request that the user can put right.
    """
    outputs = {"--junit": request.junit, "--json": request.json_file}
    renewed = Path(request.update_baseline) if request.update_baseline else None
    _check_outputs(request, outputs)
    if renewed:
        refuse_other_outputs(renewed, "--update-baseline a directory of results")
    file = read_budgets(Path(request.budgets)) if request.budgets else BudgetFile()
    # Budgets and tolerances of options: one for each pair of a chosen model and runtime.
    pairs = product(request.models or (None,), request.runtimes or (None,))
    selectors = [{"model": model, "runtime": runtime, "batch_size": request.batch_size} for model, runtime in pairs]
    chosen: list[Any] = [_given(one) for one in selectors]
    limits: dict[str, Any] = request.limits()
    asked = [GateBudget(**one, **limits, over_seeds=request.over_seeds) for one in chosen if limits]
    changes = {"max_drop": request.max_baseline_drop, "max_slowdown": request.max_baseline_slowdown}
    # What is not chosen stays as the file's [baseline] has it.
    tolerances = [replace(file.baseline, **_given(changes), **one) for one in chosen]
    older: dict[str, Any] = {"baseline": request.baseline, "against": request.against}
    verdict = GateVerdict()
    if file.budget or asked or any(older.values()) or not renewed:
        verdict = check(request.results, file.budget, asked=asked, tolerances=tolerances, **older)
    _check_outputs(request, outputs)
    for (option, path), form in zip(outputs.items(), (to_junit, to_json), strict=True):
        if path:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(Path(path), form(verdict))
            except OSError as error:
                raise unwritable(Path(path), error, option) from None
    if renewed and verdict.outcome == HOLDS:
        try:
            return replace(verdict, stored=store_reference(request.results, renewed))
        except CompressError as error:
            raise PartlyMade(str(error), verdict) from error
    return verdict


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_outputs(request: Check, outputs: dict[str, Any]) -> None:
    """Refuse, before the work, files that cannot be written, or that are there and not verdicts of earlier checks."""
    for (option, path), read in zip(outputs.items(), (read_junit, read_verdict), strict=True):
        if path is None:
            continue
        keep_apart([output_path(path, option)], local_inputs(request), option)
        check_file(path, option)
        if Path(path).is_file() and Path(path).stat().st_size:
            try:
                read(Path(path))
            except CompressError:
                raise CompressError(
                    f"{option} {path} exists and is not a verdict of compress, so that it is not replaced; choose "
                    "another"
                ) from None
    if all(outputs.values()) and len({*map(os.path.realpath, outputs.values())}) == 1:
        raise CompressError(f"--junit and --json are both {request.json_file}; name two files")


def to_markdown(verdict: GateVerdict) -> str:
    """Return the verdict for a pull request or ``$GITHUB_STEP_SUMMARY``: notes, judgements, then what changed."""
    parts = [f"## compress check: {_HEADINGS[verdict.outcome]}", ""]
    parts += [f"* ℹ️ {markdown_text(note)}" for note in verdict.notes]
    parts += [f"* {_MARKS[j.outcome]} {markdown_text(j.sentence)}" for j in verdict.judgements]
    if verdict.changes:
        headings = ["Model", "metric then", "now", "points", "speed-up then", "now", "ratio", "weights then", "now"]
        made = table(headings, list(map(_change_row, verdict.changes)))
        parts += ["", f"### Since {markdown_text(verdict.older)}", "", made]
    return "\n".join([*parts, ""])


def to_text(verdict: GateVerdict) -> str:
    """Return the verdict for a terminal or a log: notes, judgements, then what changed; a line each."""
    lines = [f"note: {note}" for note in verdict.notes]
    lines += [f"{judgement.outcome}: {judgement.sentence}" for judgement in verdict.judgements]
    lines += [f"since {verdict.older}: {_CHANGE.format(*_change_row(change))}" for change in verdict.changes]
    return "\n".join(terminal_text(one_line(line)) for line in lines)


def _change_row(change: Change) -> list[str]:
    """Return then, now and difference of a model; intervals in brackets, ``–`` for unknown."""
    then, now = change.then, change.now
    metric = [shown_metric(line) if line and line.metric is not None else "–" for line in (then, now)]
    speed = [times(line.speedups.value) if line else "–" for line in (then, now)]
    size = [megabytes(line.size_bytes) if line else "–" for line in (then, now)]
    lost = "–" if change.points is None else "{} ({} to {})".format(*map(points, change.points))
    ratio = "–" if change.speed_ratio is None else "{:.2f} ({:.2f} to {:.2f})".format(*change.speed_ratio)
    return [change.subject, *metric, lost, *speed, ratio, *size]


def to_junit(verdict: GateVerdict) -> str:
    """Return JUnit XML: one suite, one test case a judgement. Broken is a failure, undecided is skipped."""
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    page.filters["line"] = one_line
    return _XML_HEAD + page.from_string(_JUNIT).render(suite=_SUITE, verdict=verdict)


def read_junit(path: Path) -> None:
    """Read a file that is about to be replaced.

    Raises:
        CompressError: it is not what :func:`to_junit` returns.
    """
    if not read_text(path).startswith(f'{_XML_HEAD}<testsuites name="{_SUITE}" '):
        raise CompressError(f"{path} is no verdict of compress check")


def github_annotations(verdict: GateVerdict) -> list[str]:
    """Return workflow commands: an error for each broken limit, a warning for an undecided one, a notice for a note."""
    levels = {BROKEN: "error", UNDECIDED: "warning"}
    lines = [
        f"::{levels[one.outcome]} title={title.translate(_IN_TITLES)}::{_message(one.sentence)}"
        for one, title in ((one, _message(f"{one.gate}: {one.subject}")) for one in verdict.judgements)
        if one.outcome in levels
    ]
    return lines + [f"::notice title=compress check::{_message(note)}" for note in verdict.notes]


def _message(text: str) -> str:
    """Escape as GitHub's own toolkit does; on one line there is nothing else to escape."""
    return terminal_text(one_line(text)).replace("%", "%25")


def to_json(verdict: GateVerdict) -> str:
    """Return the verdict for programs: outcome, exit code, and every judgement with its figures."""
    found: dict[str, Any] = {
        "schema": JSON_SCHEMA,
        "outcome": verdict.outcome,
        "exit_code": verdict.exit_code,
        "judgements": list(map(asdict, verdict.judgements)),
        "notes": list(verdict.notes),
    }
    return visible(json.dumps(found, ensure_ascii=False, indent=2, allow_nan=False)) + "\n"


def read_verdict(path: Path) -> None:
    """Read a file that is about to be replaced.

    Raises:
        CompressError: it is not what :func:`to_json` returns.
    """
    if set(read_json_table(path)) != _JSON_KEYS:
        raise CompressError(f"{path} is no verdict of compress check")
