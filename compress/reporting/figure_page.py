"""A report page of charts, each with its data as a table and as files."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.benchmarking.results.formatting import points, shown, span, table
from compress.escaping.markdown import Markdown
from compress.models.output_dir import write_atomically
from compress.reporting.charts.svg import Picture
from compress.reporting.rendering import render
from compress.reporting.tables.cells import Cell

HTML_NAME, MARKDOWN_NAME = "report.html", "report.md"


@dataclass(frozen=True)
class Figure:
    """A picture with its caption, the file it is also written to, and the same as a table; or a table alone."""

    title: str
    caption: str
    file: str
    picture: Picture | None
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def markdown(self) -> Markdown:
        return table(self.headings, self.rows)


@dataclass(frozen=True)
class FigurePage:
    """What the templates show; ``command`` made it, and ``again`` makes again what it found."""

    title: str
    command: str
    verdict: Sequence[str]
    figures: Sequence[Figure]
    again: str = ""


def quality(one: Mapping[str, Any], metric: str) -> list[Cell]:
    """Return the cells of a metric's ``value`` and of its difference to the whole model in ``points``."""
    interval = span(points(one["low"]), points(one["high"]))
    return [Cell(shown(one["value"], metric), "", one["value"]), Cell(points(one["points"]), interval, one["points"])]


def write_figures(content: Mapping[str, Any], view: Callable[[Any], FigurePage], file: Path) -> None:
    """Write figures as JSON, and the page about them beside the file; its folder is made."""
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, json.dumps(content, indent=1) + "\n")
    write_page(view(content), file.parent)


def write_page(page: FigurePage, directory: Path) -> None:
    """Write ``report.html``, ``report.md``, and a CSV and, of pictures, an SVG for each figure."""
    write_atomically(directory / HTML_NAME, render("figures.html.j2", page))
    write_atomically(directory / MARKDOWN_NAME, render("figures.md.j2", page))
    for figure in page.figures:
        if figure.picture:
            write_atomically(directory / f"{figure.file}.svg", figure.picture.wide)
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(figure.headings)
        writer.writerows([cell.text if cell.value is None else cell.value for cell in row] for row in figure.rows)
        write_atomically(directory / f"{figure.file}.csv", buffer.getvalue())
