"""How a model was trained, as text with small plots.

The charts of reports are in :mod:`compress.reporting.charts.training_curve`. How good a student is after more rows is
another curve: :mod:`compress.reporting.charts.learning_curve`.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from statistics import fmean

from compress.models.training_log import Line, TrainingLog, series
from compress.reporting.terminal_plot import BLOCKS, WIDTH, plot

PARTS = 10  # rows of a training without evaluations
FEWEST = 3  # points of a plot
_FIGURES = {"validation": "{:.4f}", "loss": "{:.4f}", "learning_rate": "{:.2e}", "rows_per_second": "{:,.0f}"}


def as_text(log: TrainingLog, glyphs: str = BLOCKS) -> str:
    """Return plots and a table for each phase: a row an evaluation, with the means of the lines since the one before.

    Args:
        glyphs: of the plots, from an empty cell to a full one.
    """
    shown = []
    for name, lines in log.phases:
        plots = [
            plot(key, points, glyphs) for key in ("validation", "loss") if len(points := series(lines, key)) >= FEWEST
        ]
        beside = ["   ".join(row).rstrip() for row in zip_longest(*plots, fillvalue=" " * WIDTH)]
        shown.append("\n".join([*([name] if name else []), *beside, *([""] if beside else []), _table(lines)]))
    return "\n\n".join(shown)


def _table(lines: Sequence[Line]) -> str:
    terms = sorted({key for line in lines for key in line if key.startswith("loss/")})
    names = ["validation", "loss", *(terms if len(terms) > 1 else []), "learning_rate", "rows_per_second"]
    rows = [["step", *(name.replace("_", " ") for name in names)]]
    for part in _parts(lines):
        row = [f"{part[-1]['step']:,}"]
        for name in names:
            values = [value for _, value in series(part, name)]
            row.append(_FIGURES.get(name, "{:.4f}").format(fmean(values)) if values else "–")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _parts(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Yield the lines up to each evaluation, or equal parts where there is none."""
    ends = [number for number, line in enumerate(lines, 1) if "validation" in line]
    if not ends:
        ends = sorted({round(len(lines) * part / PARTS) for part in range(1, PARTS + 1)} - {0})
    for start, end in zip([0, *ends], ends, strict=False):
        yield lines[start:end]
