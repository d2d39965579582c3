"""Text from files inside Markdown: names of models and data come from anywhere and stay plain text."""

from __future__ import annotations

from collections.abc import Sequence


def plain(text: object) -> str:
    """Make text safe in a line or a table cell: one line, no column marks, HTML, emphasis, links, maths or mentions."""
    flat = " ".join(str(text).split()).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|*_`[]~$":
        flat = flat.replace(mark, "\\" + mark)
    return flat.replace("#", "&#35;").replace("@", "&#64;")


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table: the first column to the left, numbers to the right."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
