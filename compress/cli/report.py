"""compress report"""

from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import tell
from compress.progress import Progress


@click.command(cls=Command)
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...")
@click.option(
    "--curve",
    "curves",
    multiple=True,
    metavar="FILE",
    help="A model's directory, for the curves of its training and of its pruning; or one of these files.",
)
@click.option("--title", default="", metavar="TEXT", help="Heading; default the study's name.")
@click.option(
    "--max-accuracy-drop",
    type=options.Real(min=0),
    default=1.0,
    show_default=True,
    metavar="POINTS",
    help="Budget that verdicts are about, in points.",
)
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="MACHINE=AMOUNT",
    help="What an hour of a whole machine costs: cpu=0.34, cpu:8=0.34 (with 8 threads), cuda=2.5; may be repeated.",
)
@click.option("--currency", default="", metavar="TEXT", help="Currency written after amounts.")
@click.option(
    "--texts",
    multiple=True,
    metavar="FILE",
    help="The test data, to show the texts of flipped rows in the page; may be repeated.",
)
@options.columns
@click.option("-o", "--output", required=True, metavar="DIR", help="Directory to write the pages to; no model.")
@options.force
@options.verbosity
def command(
    results: tuple[str, ...],
    curves: tuple[str, ...],
    output: str,
    texts: tuple[str, ...],
    prices: tuple[str, ...],
    currency: str,
    columns: options.Names,
    progress: Progress,
    **settings: Any,
) -> None:
    """Write results as an HTML page, Markdown and JSON."""
    from compress.reporting.cost import PriceList
    from compress.reporting.report import report

    options.check_idle("--texts FILE", texts, *options.COLUMNS)
    options.check_idle("--price MACHINE=AMOUNT", prices, "currency")
    sources = [options.open_labelled(path, "test", columns) for path in texts]
    page = report(results, output, curves=curves, texts=sources, prices=PriceList(prices, currency), **settings)
    tell(str(page))
