"""Build the report as one view, which the HTML, Markdown and JSON files render."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compress.benchmarking.results.files import results_of
from compress.benchmarking.results.schema import Measurement
from compress.reporting.charts.pruning_curve import Curve, draw_curve
from compress.reporting.provenance import Known, Origin, ShownLock, known_models, left_out, origins
from compress.reporting.sections import Section, gather, section
from compress.reporting.tables.cells import Cell
from compress.reporting.tables.cost import Costs, Prices, costs_of
from compress.reporting.tables.seeds_table import repeats

# A model's name, a metric and the points, as compress.reporting.charts.pruning_curve.read_curve reads them.
ReadCurve = tuple[str, str, list[dict[str, str]]]


@dataclass(frozen=True)
class Options:
    """What whoever makes the report may choose: the budget of the verdict, prices and their currency, a title.

    ``texts`` are the rows of a data set by its content hash; they are shown on the page and nowhere else.
    """

    budget_points: float = 1.0
    prices: Prices = field(default_factory=dict)
    currency: str = ""
    title: str = ""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """Everything that is shown."""

    title: str
    budget_points: float
    hosts: int
    sections: list[Section]
    curves: list[Curve]
    costs: Costs | None
    repeats: list[list[Cell]]
    origins: list[Origin]
    models: list[Known]
    left_out: list[tuple[str, str]]
    locks: list[ShownLock]


def view(
    lines: Sequence[Measurement],
    curves: Sequence[ReadCurve] = (),
    locks: Sequence[ShownLock] = (),
    options: Options = Options(),
) -> Page:
    """Return the report of result lines.

    Raises:
        CompressError: a price is for a machine that was not measured.
    """
    measured = gather(lines, options.budget_points)
    best = [row for part in measured for row in part.leaders.models]
    studies = sorted({line.study for line in lines if line.study})
    return Page(
        title=options.title or ", ".join(studies) or f"Compression on {lines[0].data}",
        budget_points=options.budget_points,
        hosts=len({line.host_id for line in lines}),
        sections=[section(part, options.texts) for part in measured],
        curves=[draw_curve(*curve) for curve in curves],
        costs=costs_of(results_of(lines), best, options.prices, options.currency),
        repeats=repeats(lines),
        origins=origins(lines),
        models=known_models(lines),
        left_out=left_out(lines),
        locks=list(locks),
    )
