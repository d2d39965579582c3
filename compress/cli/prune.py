"""compress prune"""

from __future__ import annotations

from typing import Any

import click

from compress.cli import options


@click.command()
@click.option("--model", required=True, metavar="DIR", help="The model to prune.")
@click.option("--heads", required=True, metavar="N", help="How many heads to remove: 60%, 0.6, or a count such as 40.")
@click.option("--train", required=True, metavar="FILE", help="Labelled rows that score the heads.")
@click.option("--validation", metavar="FILE", help="Labelled rows for the curve and the best checkpoint.")
@click.option(
    "--criterion", default="gradient", show_default=True, metavar="NAME", help="See 'compress list criteria'."
)
@click.option("--examples", type=int, default=1024, show_default=True, help="Rows of --train that score the heads.")
@click.option(
    "--step", type=float, default=0.1, show_default=True, help="Share of heads to remove between two scorings."
)
@click.option("--normalise/--no-normalise", default=True, show_default=True, help="Compare scores across layers.")
@click.option("--recover", type=float, default=0.0, metavar="EPOCHS", help="Distil from the unpruned model afterwards.")
@click.option("--labels", multiple=True, metavar="DIR", help="Text for --recover, from 'compress label'.")
@options.output
@options.drop_overlap
@options.metric
@options.columns
@options.computing
@options.verbosity
def command(
    model: str, heads: str, train: str, validation: str | None, output: str, quiet: bool, **settings: Any
) -> None:
    """Remove attention heads by importance, for real.

    The weights get smaller; the accuracy after every step is written as a table and a picture.
    """
    train_rows = options.read_labelled(train, "train", settings)
    validation_rows = options.read_labelled(validation, "validation", settings)
    from compress.prune import CURVE_NAME, PICTURE_NAME, prune_heads

    options.forget_columns(settings)
    made = prune_heads(model, heads, output, train=train_rows, validation=validation_rows, quiet=quiet, **settings)
    options.show_result(made)
    if not quiet and made.manifest:
        notes = made.manifest.notes
        click.echo(
            f"{notes['heads_removed']} heads removed, {notes['heads_kept']} stay; curve: {CURVE_NAME}, {PICTURE_NAME}"
        )
