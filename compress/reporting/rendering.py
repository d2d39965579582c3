"""Pages of charts and tables as data, and the templates that render them; every value is escaped."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.benchmarking.results.formatting import exact, plural, points, shown, span, times
from compress.escaping.markdown import code_span, markdown_text
from compress.escaping.markup import visible_value
from compress.files import write_atomically
from compress.reporting.curves import Chart
from compress.reporting.pareto import MARKERS, symbol
from compress.reporting.tables import Cell

HTML_NAME, MARKDOWN_NAME = "report.html", "report.md"


@dataclass(frozen=True)
class StudyPage:
    """The page of a stage: sentences, then charts and tables; ``again`` is a command that makes again what it found."""

    title: str
    command: str
    verdict: Sequence[str]
    contents: Sequence[Chart]
    again: str = ""


def render(template: str, page: Any) -> str:
    """Return a page from one of the ``templates``, as HTML or as Markdown."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    is_html = template.endswith(".html.j2")
    environment = Environment(
        loader=PackageLoader("compress.reporting"),
        autoescape=is_html,
        finalize=visible_value if is_html else markdown_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "plural": plural,
        "points": points,
        "times": times,
        "exact": exact,
        "code_span": code_span,
    }
    environment.globals |= {"kinds": MARKERS, "symbol": symbol}
    return environment.get_template(template).render(page=page)


def write_study(content: Mapping[str, Any], view: Callable[[Any], StudyPage], file: Path) -> None:
    """Write what a stage found as JSON, and the page about it beside the file; its folder is made."""
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, json.dumps(content, indent=1) + "\n")
    write_page(view(content), file.parent)


def write_page(page: StudyPage, directory: Path) -> None:
    """Write ``report.html``, ``report.md``, and a CSV and, of pictures, an SVG for each chart."""
    write_atomically(directory / HTML_NAME, render("study.html.j2", page))
    write_atomically(directory / MARKDOWN_NAME, render("study.md.j2", page))
    for chart in page.contents:
        for picture in chart.pictures:
            write_atomically(directory / f"{chart.name}.svg", picture.wide)
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(chart.headings)
        writer.writerows([cell.text if cell.value is None else cell.value for cell in row] for row in chart.rows)
        write_atomically(directory / f"{chart.name}.csv", buffer.getvalue())


def quality(one: Mapping[str, Any], metric: str) -> list[Cell]:
    """Return the cells of a metric's ``value`` and of its difference to the whole model in ``points``."""
    interval = span(points(one["low"]), points(one["high"]))
    return [Cell(shown(one["value"], metric), "", one["value"]), Cell(points(one["points"]), interval, one["points"])]
