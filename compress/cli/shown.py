"""What commands print of results, and the same as JSON values for ``--json``.

A function a request prints its result and returns what a program wants to know of it; ``exit_code`` in that is the
command's.
"""

import io
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from compress.cli.printing import say, show, tell
from compress.errors import ExitCode
from compress.escaping import one_line, terminal_cell, without_secrets

WIDTH_IN_A_LOG = 180
JSON_HELP = "Print one JSON object, and all else to standard error."


def print_result(as_json: bool, show: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Let a function print a result, or print as JSON what it returns."""
    with redirect_stdout(io.StringIO()) if as_json else nullcontext():
        found = show()
    if as_json:
        say(json.dumps(_plain(found), ensure_ascii=False))
    return found


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; a number that is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
    if is_dataclass(value):
        return _plain(vars(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def of_model(asked: Any, model: Any) -> dict[str, Any]:
    """Show a model directory, or a cascade."""
    manifest = model.manifest
    facts = [f"{model.parameters:,} parameters", f"{model.size_bytes / 1e6:.1f} MB"]
    facts += [f"{m['name']} {m['value']:.4f} on {m['split']} (n = {m['rows']:,})" for m in manifest.metrics]
    tell(f"{model.path}: {', '.join(facts)}")
    size = {"parameters": model.parameters, "size_bytes": model.size_bytes}
    said = {name: getattr(manifest, name) for name in ("stage", "task", "labels", "metrics", "notes")}
    return {"path": model.path, **size, **said}


def _pruned(asked: Any, made: Any) -> dict[str, Any]:
    found, page = of_model(asked, made), made.path / "report.html"
    tell(f"Removed: {made.manifest.notes['removed']}. Page: {page}")
    return {**found, "page": page}


def _quantized(asked: Any, made: Any) -> dict[str, Any]:
    found = of_model(asked, made)
    for note, value in made.manifest.notes.items():
        if isinstance(value, str | int | float):
            tell(f"  {note}: {value}")
    for name, outcome in made.manifest.notes.get("candidates", {}).items():
        tell(f"  {name}: {outcome if isinstance(outcome, str) else _candidate(outcome)}")
    return found


def _candidate(outcome: Mapping[str, Any]) -> str:
    speeds = [f"x{found['value']:.2f} at batch size {size}" for size, found in outcome["speedup"].items()]
    quality = f"{outcome['int8']:.4g} where fp32 has {outcome['fp32']:.4g}"
    return ", ".join([*(outcome["reasons"] or speeds), quality, f"{outcome['bytes'] / 1e6:.1f} MB"])


def _calibrated(asked: Any, made: Any) -> dict[str, Any]:
    from compress.calibration.calibrate import PAGE, calibration_verdict

    return _judged(made, calibration_verdict(made), made.path / PAGE)


def _joined(asked: Any, made: Any) -> dict[str, Any]:
    from compress.cascades.cascade import PAGE, cascade_verdict

    return _judged(made, cascade_verdict(made), made.path / PAGE)


def _judged(made: Any, verdict: Any, page: Path) -> dict[str, Any]:
    found, said = of_model(None, made), [*verdict]
    tell("\n".join([*said, f"Page: {page}"]))
    return {**found, "verdict": said, "page": page}


def _studied(asked: Any, made: Path) -> dict[str, Any]:
    page, figures = made / "report.html", made / "heads.json"
    tell(f"Page: {page}; figures: {figures}")
    return {"path": made, "page": page, "figures": figures}


def _audited(asked: Any, made: Path) -> dict[str, Any]:
    from compress.auditing.audit import AUDIT_NAME, COPIES_NAME, LABELS_NAME
    from compress.files import read_json_table
    from compress.reporting.audit_page import audit_verdict

    said = audit_verdict(read_json_table(made / AUDIT_NAME, limit_bytes=sys.maxsize))
    files = {
        name: made / file
        for name, file in (("page", "report.html"), ("suspects", LABELS_NAME), ("copies", COPIES_NAME))
    }
    tell("\n".join([*said, "; ".join(f"{name.capitalize()}: {file}" for name, file in files.items())]))
    return {"path": made, "verdict": said, **files}


def _labelled(asked: Any, made: Any) -> dict[str, Any]:
    from compress.benchmarking.results.formatting import plural
    from compress.labelling.label_dir import described_cost

    plan = made.manifest.notes
    part_of = "part {} of {} of ".format(*asked.shard) if "part" in plan else ""
    if asked.language_model:
        left_out = f"; {plural(plan['unanswered'], 'row')} without an answer" if "unanswered" in plan else ""
        left_out += f"; answers: {described_cost(plan['bought'])}" if "bought" in plan else ""
        return _labels(asked, made, f"{part_of}{made.described_rows} labelled by {made.teacher_name}{left_out}")
    return _labels(
        asked,
        made,
        f"{part_of}{made.described_rows} labelled on {plan['runtime']} ({plan['device']}, "
        f"{plural(plan['threads'], 'thread')}, {plan['precision']}{': ' if plan['reason'] else ''}{plan['reason']})",
    )


def estimated(asked: Any, made: Any) -> dict[str, Any]:
    price = "" if made.usd is None else f", {made.usd:.4f} USD"
    by = "as earlier answers were" if made.measured else "at most, at 4 bytes a token"
    tell(
        f"{made.rows:,} rows: {made.questions:,} questions, {made.answered:,} of them answered already or repeated; "
        f"the others take {made.input_tokens:,} tokens and {made.output_tokens:,} of answers ({by}){price}"
    )
    return dict(vars(made))


def _imported(asked: Any, made: Any) -> dict[str, Any]:
    names = made.manifest.labels
    shown = f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}"
    return _labels(asked, made, f"{made.rows:,} rows of {len(names)} classes ({shown})")


def _labels(asked: Any, made: Any, said: str) -> dict[str, Any]:
    place = without_secrets(str(getattr(asked, "output", None) or made.path))
    tell(f"{place}: {said}")
    manifest = made.manifest
    return {"path": place, "rows": made.rows, "labels": manifest.labels, "notes": manifest.notes}


def _measured(asked: Any, lines: Any) -> dict[str, Any]:
    from compress.benchmarking.results.verdict import JudgedLines
    from compress.reporting.sections import what_accuracy_hides
    from compress.reporting.terminal import results_table

    show(results_table(lines), WIDTH_IN_A_LOG)
    for sentence in what_accuracy_hides(JudgedLines(lines)):
        tell(one_line(sentence))
    tell(f"{asked.output}: {len(lines)} lines")
    return {"path": asked.output, "lines": [line.to_json() for line in lines]}


def _replayed(asked: Any, made: Any) -> dict[str, Any]:
    from rich.table import Table

    found, table, said = made.agreement, Table(), _reason(made.agreement)
    for heading in ("model", "runtime", "setting", "figure", "lock", "interval", "now", ""):
        table.add_column(heading, justify="right" if heading in {"lock", "interval", "now"} else "left")
    for row in found.comparisons:
        before, low, high, now = (_figure(row.what, value) for value in (*row.before, row.after))
        cells = (row.model, row.runtime, row.setting, row.what, before, f"{low} to {high}", now, row.outcome)
        table.add_row(*map(terminal_cell, cells))
    show(table, WIDTH_IN_A_LOG)
    for missing in found.missing:
        tell(f"not measured again: {one_line(missing)}")
    for name, (before, after) in found.versions.items():
        tell(f"version of {one_line(name)}: {one_line(before)} then, {one_line(after)} now")
    say(f"{found.verdict}: {said}")
    about = {"verdict": found.verdict, "reason": said, "exit_code": found.exit_code}
    return {"path": asked.output, **about, **vars(found)}


def _checked(asked: Any, verdict: Any) -> dict[str, Any]:
    """Show a verdict; on GitHub annotate the job and add to its summary."""
    from compress.gating.gate import github_annotations, to_markdown, to_text
    from compress.models.output_dir import append_summary

    if verdict.judgements:
        say(to_text(verdict))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for annotation in github_annotations(verdict):
                print(annotation)  # a command of the workflow, which saying would make text
        append_summary(to_markdown(verdict))
    for path, gone in verdict.stored.items():
        lost = f"; no longer in it, as these results have none of: {', '.join(gone)}" if gone else ""
        say(f"baseline: wrote {path}{lost}")
    if asked.update_baseline and verdict.exit_code:
        say(f"note: {asked.update_baseline} is left as it is, because the verdict is {verdict.outcome}")
    return {"exit_code": verdict.exit_code}


def _figure(what: str, value: float) -> str:
    if what == "size":
        return f"{value / 1e6:,.2f} MB"
    return f"x{value:.2f}" if what == "speed-up" else f"{value:.4f}"


def _reason(found: Any) -> str:
    from compress.benchmarking.replay import DIFFERS, OTHER_HOST, OTHER_METHOD

    outcomes = [comparison.outcome for comparison in found.comparisons]
    if found.verdict == "differs":
        return f"{outcomes.count(DIFFERS)} of {len(outcomes)} figures are outside their intervals"
    counts = {
        "speed-ups are of another host": outcomes.count(OTHER_HOST),
        "speed-ups were measured by another method": outcomes.count(OTHER_METHOD),
        "configurations were not measured again": len(found.missing),
    }
    rest = f"{sum(one not in (OTHER_HOST, OTHER_METHOD) for one in outcomes)} figures hold"
    return "; ".join([*(f"{count} {what}" for what, count in counts.items() if count), rest])


def _run(asked: Any, made: Path) -> dict[str, Any]:
    from compress.reporting.pages import MARKDOWN_NAME
    from compress.requests.training import REPORT_NAME, RESULTS_NAME

    page, results = made / REPORT_NAME / "report.html", made / RESULTS_NAME
    tell(page.with_name(MARKDOWN_NAME).read_text(encoding="utf-8"))
    tell(f"Report: {page}; results: {results}")
    return {"path": made, "page": page, "results": results}


def _reported(asked: Any, page: Path) -> dict[str, Any]:
    tell(str(page))
    return {"page": page}


def _searched(asked: Any, made: Any) -> dict[str, Any]:
    from compress.reporting.search_page import verdict

    found, page, best = made.content, made.path / "report.html", made.path / "best"
    model = best if best.is_dir() else None
    tell("\n".join(verdict(found)))
    tell(f"Page: {page}" + (f"; model: {model}" if model else ""))
    code = ExitCode.DONE if found["met"] else ExitCode.BROKEN
    return {"path": made.path, "page": page, "best": model, **found, "exit_code": code}


# By the class of the request; of others the result is a model directory.
SHOWN: Mapping[str, Callable[[Any, Any], dict[str, Any]]] = {
    "Audit": _audited,
    "Benchmark": _measured,
    "Calibrate": _calibrated,
    "Cascade": _joined,
    "Check": _checked,
    "CloseLabels": lambda asked, made: _labels(asked, made, made.described_rows),
    "HeadStudy": _studied,
    "ImportLabels": _imported,
    "Label": _labelled,
    "MergeLabels": lambda asked, made: _labels(asked, made, f"{made.rows:,} rows of {len(asked.parts):,} parts"),
    "Prune": _pruned,
    "Quantize": _quantized,
    "Replay": _replayed,
    "Report": _reported,
    "Run": _run,
    "Search": _searched,
}
