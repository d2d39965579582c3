"""compress labels"""

import click

from compress.cli import options
from compress.cli.printing import say
from compress.progress import Progress


@click.group()
def command() -> None:
    """Join labels that several commands made."""


@command.command()
@click.argument("parts", nargs=-1, required=True, metavar="DIR...")
@options.output
@options.force
@options.verbosity
def merge(parts: tuple[str, ...], output: str, force: bool, quiet: bool, progress: Progress) -> None:
    """Join what 'compress label --shard 1/N' to 'N/N' wrote: the labels of one command that labelled the whole text."""
    from compress.labelling.merge import merge_labels

    made = merge_labels(parts, output, force=force, progress=progress)
    if not quiet:
        say(f"{output}: {made.rows:,} rows of {len(parts):,} parts")
