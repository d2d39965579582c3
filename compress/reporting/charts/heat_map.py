"""Heat map of a table of numbers: heads by layer, or rank correlations of criteria."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from compress.escaping.markup import markup_text
from compress.reporting.charts.svg import Canvas, both_sizes, document

CELL_HEIGHT = 26
STYLE = (
    ".chart .cell{fill:var(--c0)}.chart .below{fill:var(--c1)}.chart .over{fill:var(--paper)}"
    ".chart .small{font-size:11px}"
)


@both_sizes
def draw(
    canvas: Canvas,
    rows: Sequence[Sequence[float]],
    *,
    title: str,
    rows_named: Sequence[str] = (),
    columns_named: Sequence[str] = (),
    formatted: Callable[[float], str] | None = None,
) -> str:
    """Draw a heat map as a standalone SVG document, the first row on top; rows may differ in length.

    The shade is a number's share of the largest magnitude; numbers below zero have another colour.

    Args:
        rows_named: by default ``layer 1`` and so on.
        columns_named: by default numbers from 1.
        formatted: makes of a number what is written into its cell; without it none is.
    """
    widest = max(map(len, rows))
    names = rows_named or [f"layer {index + 1}" for index in range(len(rows))]
    heads = columns_named or [str(index + 1) for index in range(widest)]
    canvas = replace(
        canvas,
        left=max(canvas.left, 16 + 7 * max(map(len, names))),
        height=canvas.top + 20 + CELL_HEIGHT * len(rows) + 14,
    )
    width = (canvas.right - canvas.left) / widest
    largest = max((abs(value) for row in rows for value in row), default=0.0) or 1.0
    parts = [f'<text class="title" x="{canvas.left if canvas.width > 500 else 8}" y="22">{markup_text(title)}</text>']
    for column, name in enumerate(heads):
        x = canvas.left + width * (column + 0.5)
        short = name if len(name) * 7 < width else name[: max(1, int(width // 8))]
        place = f'x="{x:.1f}" y="{canvas.top + 8}" text-anchor="middle"'
        parts.append(f'<text class="faint small" {place}>{markup_text(short)}</text>')
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = canvas.top + 16 + CELL_HEIGHT * index
        place = f'x="{canvas.left - 8}" y="{y + 17}" text-anchor="end"'
        parts.append(f'<text class="faint" {place}>{markup_text(name)}</text>')
        for column, value in enumerate(row):
            share = abs(value) / largest
            x = canvas.left + width * column
            parts.append(
                f'<rect class="{"below" if value < 0 else "cell"}" x="{x:.1f}" y="{y}" width="{width - 2:.1f}" '
                f'height="{CELL_HEIGHT - 2}" fill-opacity="{share:.3f}">'
                f"<title>{markup_text(name)}, {markup_text(heads[column])}: {value:.4g}</title></rect>"
            )
            if formatted and width > 30:
                parts.append(
                    f'<text class="small{" over" if share > 0.6 else ""}" x="{x + width / 2 - 1:.1f}" y="{y + 16}" '
                    f'text-anchor="middle">{formatted(value)}</text>'
                )
    top = max(
        (
            (value, name, heads[column])
            for row, name in zip(rows, names, strict=True)
            for column, value in enumerate(row)
        )
    )
    says = f"{len(rows)} rows of up to {widest}; the largest is {top[0]:.4g} at {top[1]}, {top[2]}."
    return document(canvas, title, parts, description=says, style=STYLE)
