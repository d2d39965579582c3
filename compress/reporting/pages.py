"""Pages as data, sentences, tables and charts, and how they are written: as HTML, Markdown, JSON, CSV and SVG.

Every value is escaped where a page is rendered. ``report.json`` holds what the page shows, in the shape of the
dataclasses behind it; what is for the page alone, such as pictures, is left out. A cell has ``text`` and ``small`` as
shown, and ``value`` with its interval ``low`` to ``high`` as numbers or null.
"""

import csv
import io
import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from compress.benchmarking.results.formatting import NONE, in_percent, points, shown, span, table
from compress.escaping import Markdown, markdown_text, visible
from compress.files import write_atomically
from compress.reporting.rendering import render
from compress.reporting.svg import Picture

HTML_NAME, MARKDOWN_NAME, JSON_NAME = "report.html", "report.md", "report.json"
FORMAT = 1  # of report.json
PAGE_ONLY = {"page_only": True}  # of a field that report.json does not have

Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class Cell:
    """What a cell shows, a smaller second line, and the number behind it; no number sorts last."""

    text: str
    small: str = ""
    value: float | str | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """Return what it shows in one line, the second one in brackets."""
        return f"{self.text} ({self.small})" if self.small else self.text


EMPTY = Cell(NONE)


def number(
    value: float | None,
    form: Callable[[float], str],
    interval: Ends = (None, None),
    *,
    ends: Callable[[float], str] | None = None,
    scale: float = 1,
    small: str = "",
) -> Cell:
    """Return a cell with a number and, below it, its 95% interval or else ``small``; a dash where there is no number.

    Args:
        form: writes the number.
        ends: writes the ends of the interval; by default ``form``.
        scale: 100 where the number is a fraction and the cell is in percent.
    """
    if value is None:
        return EMPTY
    low, high = interval
    if low is None or high is None:
        return Cell(form(value), small, scale * value)
    return Cell(form(value), span(*map(ends or form, (low, high))), scale * value, scale * low, scale * high)


share = partial(number, form="{:.1%}".format, scale=100)
integer = partial(number, form="{:,}".format)


def metric_cell(value: float | None, metric: str | None, interval: Ends = (None, None), *, small: str = "") -> Cell:
    """Return a cell with the value of a metric, a fraction, and its interval or else ``small``."""
    ends, scale = partial(shown, metric=metric, digits=1), 100 if in_percent(metric) else 1
    return number(value, partial(shown, metric=metric), interval, ends=ends, scale=scale, small=small)


@dataclass(frozen=True)
class ReportTable:
    """Headings and rows of cells, of which the first names its row; with pictures it is a chart.

    ``notes`` stand below it, ``texts`` are those of the rows, for the page alone, and ``name`` is that of the files it
    is also written to.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = field(default=(), metadata=PAGE_ONLY)
    caption: str = field(default="", metadata=PAGE_ONLY)
    name: str = field(default="", metadata=PAGE_ONLY)
    texts: Sequence[str] = field(default=(), metadata=PAGE_ONLY)

    def without_empty(self, headings: Container[str]) -> "ReportTable":
        """Return the table without those of these columns that no row fills."""
        empty = [all(row[index] == EMPTY for row in self.rows) for index in range(len(self.headings))]
        kept = [index for index, name in enumerate(self.headings) if name not in headings or not empty[index]]
        rows = [[row[index] for index in kept] for row in self.rows]
        return replace(self, headings=[self.headings[index] for index in kept], rows=rows)

    @property
    def markdown(self) -> Markdown:
        notes = "".join(f"\n* {markdown_text(note)}" for note in self.notes)
        return Markdown(table(self.headings, self.rows) + (f"\n{notes}\n" if notes else ""))


@dataclass(frozen=True)
class StagePage:
    """The page of a stage: sentences, then charts and tables; ``again`` is a command that makes again what it found."""

    title: str
    command: str
    verdict: Sequence[str]
    contents: Sequence[ReportTable]
    again: str = ""


def as_json(page: Any) -> str:
    """Return a report as JSON, without what is for the page alone."""

    def plain(one: Any) -> dict[str, Any]:
        return {each.name: getattr(one, each.name) for each in fields(one) if "page_only" not in each.metadata}

    text = json.dumps({"format": FORMAT, **plain(page)}, default=plain, indent=1, ensure_ascii=False, allow_nan=False)
    return visible(text) + "\n"


def write_study(content: Mapping[str, Any], view: Callable[[Any], StagePage], file: Path) -> None:
    """Write what a stage found as JSON, and the page about it beside the file; its folder is made."""
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, json.dumps(content, indent=1) + "\n")
    write_page(view(content), file.parent)


def write_page(page: StagePage, directory: Path) -> None:
    """Write ``report.html``, ``report.md``, and a CSV and, of pictures, an SVG for each chart."""
    write_atomically(directory / HTML_NAME, render("study.html.j2", page=page))
    write_atomically(directory / MARKDOWN_NAME, render("study.md.j2", page=page))
    for one in page.contents:
        for picture in one.pictures:
            write_atomically(directory / f"{one.name}.svg", picture.wide)
        rows = [[cell.text if cell.value is None else cell.value for cell in row] for row in one.rows]
        write_atomically(directory / f"{one.name}.csv", as_csv([one.headings, *rows]))


def as_csv(rows: Sequence[Sequence[object]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def quality(one: Mapping[str, Any], metric: str) -> list[Cell]:
    """Return the cells of a metric's ``value`` and of its difference to the whole model in ``points``."""
    interval = span(points(one["low"]), points(one["high"]))
    return [Cell(shown(one["value"], metric), "", one["value"]), Cell(points(one["points"]), interval, one["points"])]
