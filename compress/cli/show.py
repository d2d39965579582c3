"""compress show"""

from __future__ import annotations

import click


@click.command()
@click.argument("name")
def command(name: str) -> None:
    """Explain a recipe or plug-in: what it does, from which paper, and what it does not do yet."""
    from compress.catalogue import describe

    click.echo(describe(name))
