"""The templates of pages and pictures, in which every value is escaped, and the marks that both have."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from compress.benchmarking.results.formatting import exact, plural, points, times
from compress.escaping import code_span, markdown_text, visible_value

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Marker:
    """``path`` is the outline of a mark around 0, 0 in pixels; ``colour`` a variable of the charts' style."""

    meaning: str
    path: str
    colour: str
    hollow: bool = False


# Marks of the Pareto chart, in the order of legends and where the shape needs no words.
MARKERS: Mapping[str, Marker] = {
    "teacher": Marker("what the models are compared with", "M0-8 8 0 0 8-8 0z", "--c1"),
    "model": Marker("made from the teacher", "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z", "--c0"),
    "cascade": Marker(
        "models of which the next answers what the first is not sure of", "M0-7 7 5-7 5z M-7 1 7 1", "--c0"
    ),
    "control": Marker(
        "the same student without distillation", "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z", "--c3", hollow=True
    ),
    "baseline": Marker("a cheap classifier fitted on gold labels only", "M0-7 7 6-7 6z", "--c2"),
    "competitor": Marker("the same model in another tool", "M-5.5-5.5h11v11h-11z", "--c4"),
    "reference-model": Marker("a published size with random weights: speed only", "M-2-8h4v16h-4z", "--faint"),
    "published": Marker(
        "the authors’ figure for the method, without a speed",
        "M0-8 2-2.5 8-2.5 3.2 1.2 5 7 0 3.4-5 7-3.2 1.2-8-2.5-2-2.5z",
        "--c0",
        hollow=True,
    ),
}
ORDER = {name: index for index, name in enumerate(MARKERS)}


def number(value: float) -> str:
    """Return a tick's label without needless digits."""
    return f"{value:,.10g}" if abs(value) >= 1000 else f"{value:.10g}"


def render(template: str, **values: Any) -> str:
    """Return one of the ``templates`` with its values, as HTML, SVG or Markdown."""
    return _environment(template.endswith(".md.j2")).get_template(template).render(**values)


@cache
def _environment(is_markdown: bool) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("compress.reporting"),
        autoescape=not is_markdown,
        finalize=markdown_text if is_markdown else visible_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {one.__name__: one for one in (plural, points, times, exact, code_span, number)}
    environment.globals["kinds"] = MARKERS
    return environment
