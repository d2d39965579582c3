"""compress list"""

from __future__ import annotations

import click

from compress.catalogue import KINDS, entries
from compress.errors import CompressError, did_you_mean


@click.command()
@click.argument("kind", metavar="|".join(KINDS))
def command(kind: str) -> None:
    """List what there is to choose from."""
    if kind not in KINDS:
        raise CompressError(f"there is no list of {kind!r}; there is {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    found = entries(kind)
    width = max((len(name) for name, _ in found), default=0)
    for name, line in found:
        click.echo(f"{name:<{width}}  {line}")
