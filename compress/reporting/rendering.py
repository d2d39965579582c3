"""Render the Jinja templates of reports; every value is escaped, as HTML or as Markdown."""

from typing import Any

from compress.benchmarking.results.formatting import exact, plural, points, table, times
from compress.escaping.markdown import code_span, markdown_text
from compress.escaping.markup import visible_value
from compress.reporting.charts.pareto import MARKERS, symbol
from compress.reporting.tables import seeds_table
from compress.reporting.tables.results_table import as_markdown
from compress.reporting.tables.survey_table import as_markdown as survey_markdown


def render(template: str, page: Any) -> str:
    """Return a page from one of the ``templates``."""
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
    environment.filters.update(
        plural=plural,
        points=points,
        times=times,
        exact=exact,
        code_span=code_span,
        as_markdown=as_markdown,
        survey_markdown=survey_markdown,
    )
    environment.globals.update(
        kinds=MARKERS,
        symbol=symbol,
        repeat_headings=seeds_table.HEADINGS,
        markdown_table=table,
    )
    return environment.get_template(template).render(page=page)
