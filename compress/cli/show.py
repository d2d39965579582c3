"""compress show"""

import click

from compress.cli.printing import say


@click.command()
@click.argument("name")
def command(name: str) -> None:
    """Explain a recipe or plug-in.

    Prints the method, its paper, and which parts of the paper's method are missing.
    """
    from compress.recipes.catalogue import describe

    say(describe(name))
