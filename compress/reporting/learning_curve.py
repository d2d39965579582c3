"""The learning curve of a trained model as text, from the ``metrics.jsonl`` of its directory."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from compress.errors import CompressError
from compress.files import parse_json, read_text

PARTS = 10  # rows of a training without evaluations
_FIGURES = {"validation": "{:.4f}", "loss": "{:.4f}", "learning_rate": "{:.2e}", "rows_per_second": "{:,.0f}"}


def learning_curve(path: Path) -> str:
    """Return a table for each phase: a row an evaluation, with the means of the lines since the one before.

    Raises:
        CompressError: a line is not as a training writes it.
    """
    lines = [_checked(parse_json(text, str(path)), path) for text in read_text(path).splitlines()]
    tables = []
    for phase, found in groupby(lines, key=lambda line: line.get("phase")):
        tables.append((f"{phase}\n" if phase else "") + _table(list(found)))
    return "\n\n".join(tables)


def _checked(line: Any, path: Path) -> Mapping[str, Any]:
    if isinstance(line, dict) and isinstance(line.get("phase", ""), str) and isinstance(line.get("step"), int):
        figures = [value for key, value in line.items() if key not in {"phase", "step"}]
        if all(value is None or (isinstance(value, int | float) and abs(value) < 1e300) for value in figures):
            return line
    raise CompressError(f"{path} is damaged: copy or train the model again")


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    terms = sorted({key for line in lines for key in line if key.startswith("loss/")})
    names = ["validation", "loss", *(terms if len(terms) > 1 else []), "learning_rate", "rows_per_second"]
    rows = [["step", *(name.replace("_", " ") for name in names)]]
    for part in _parts(lines):
        row = [f"{part[-1]['step']:,}"]
        for name in names:
            values = [line[name] for line in part if line.get(name) is not None]
            row.append(_FIGURES.get(name, "{:.4f}").format(fmean(values)) if values else "–")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _parts(lines: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the lines up to each evaluation, or equal parts where there is none."""
    ends = [number for number, line in enumerate(lines, 1) if "validation" in line]
    if not ends:
        ends = sorted({round(len(lines) * part / PARTS) for part in range(1, PARTS + 1)} - {0})
    for start, end in zip([0, *ends], ends, strict=False):
        yield lines[start:end]
