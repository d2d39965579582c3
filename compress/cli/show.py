"""compress show"""

from __future__ import annotations

import click


@click.command()
@click.argument("name")
def command(name: str) -> None:
    """Explain a recipe or plug-in.

    What it does, from which paper, and what of the paper's method it does not do yet.
    """
    from compress.recipes.catalogue import describe

    click.echo(describe(name))
