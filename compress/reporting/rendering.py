"""Render the Jinja templates of reports; HTML is escaped, Markdown is not."""

from typing import Any

from compress.benchmarking.results.formatting import exact, plain, plural, points, table, times
from compress.reporting.charts.pareto import MARKERS, symbol
from compress.reporting.provenance import short
from compress.reporting.tables import seeds_table
from compress.reporting.tables.cells import in_one_line
from compress.reporting.tables.results_table import as_markdown
from compress.reporting.tables.survey_table import as_markdown as survey_markdown


def render(template: str, page: Any) -> str:
    """Return a page from one of the ``templates``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compress.reporting"),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        plain=plain,
        plural=plural,
        points=points,
        times=times,
        exact=exact,
        short=short,
        as_markdown=as_markdown,
        survey_markdown=survey_markdown,
    )
    environment.globals.update(
        kinds=MARKERS,
        symbol=symbol,
        repeat_headings=seeds_table.HEADINGS,
        markdown_table=table,
        lines_of=lambda rows: [[in_one_line(cell) for cell in row] for row in rows],
    )
    return environment.get_template(template).render(page=page)
