"""Small plots of characters, for terminals and table cells; rich and the standard library draw none."""

from collections.abc import Sequence
from statistics import fmean

BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:#"
HEIGHT, COLUMNS, LABELS = 6, 27, 10  # two beside each other fit into 80 columns
WIDTH = LABELS + 1 + COLUMNS


def plot(title: str, points: Sequence[tuple[int, float]], glyphs: str = BLOCKS) -> list[str]:
    """Return lines of :data:`WIDTH` characters: a column for equally many steps, from the lowest value to the highest.

    Args:
        points: steps, ascending, and their values; a column is the mean of its own, else the value before it.
        glyphs: of a cell, from empty to full.
    """
    first, last = points[0][0], points[-1][0]
    columns: list[list[float]] = [[] for _ in range(COLUMNS)]
    for step, value in points:
        columns[min(COLUMNS - 1, COLUMNS * max(0, step - first) // max(1, last - first))].append(value)
    values: list[float] = []
    for column in columns:
        values.append(fmean(column) if column else values[-1])  # the first column has the first point
    low, high, full = min(values), max(values), len(glyphs) - 1
    levels = [1 + round((value - low) / ((high - low) or 1) * (HEIGHT * full - 1)) for value in values]
    rows = [f"{'':>{LABELS}} {title:{COLUMNS}.{COLUMNS}}"]
    for row in reversed(range(HEIGHT)):
        label = f"{high:.4g}" if row == HEIGHT - 1 else f"{low:.4g}" if row == 0 else ""
        cells = "".join(glyphs[min(full, max(0, level - full * row))] for level in levels)
        rows.append(f"{label:>{LABELS}} {cells}")
    begin, end = f"{first:,}", f"step {last:,}"
    return [*rows, f"{'':{LABELS}} {begin}{end:>{COLUMNS - len(begin)}}"]


def sparkline(values: Sequence[float]) -> str:
    """Return characters from the lowest value to the highest: one for each, or for the last of equally many."""
    size = -(-len(values) // COLUMNS)
    values = values[(len(values) - 1) % size :: size]
    low, high, levels = min(values), max(values), len(BLOCKS) - 2
    return "".join(BLOCKS[1 + round((value - low) / ((high - low) or 1) * levels)] for value in values)
