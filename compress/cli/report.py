"""compress report"""

from __future__ import annotations

from typing import Any

import click

from compress.cli import options


@click.command()
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...")
@click.option(
    "--curve", "curves", multiple=True, metavar="FILE", help="A pruning curve, or a pruned model's directory."
)
@click.option("--title", default="", metavar="TEXT", help="Heading; default the study's name.")
@options.output
@options.force
@options.verbosity
def command(
    results: tuple[str, ...], curves: tuple[str, ...], output: str, quiet: bool, progress: Any, **settings: Any
) -> None:
    """Turn results into an HTML page and its Markdown twin."""
    from compress.report import report

    page = report(results, output, curves=curves, **settings)
    if not quiet:
        click.echo(str(page))
