"""compress finetune"""

from __future__ import annotations

from typing import Any

import click

from compress.cli import options


@click.command()
@click.option("--teacher", required=True, metavar="RECIPE|MODEL", help="A recipe, an encoder's directory or hub name.")
@click.option("--train", required=True, metavar="FILE", help="Labelled text to learn from.")
@click.option("--validation", required=True, metavar="FILE", help="Labelled text that selects the best checkpoint.")
@options.output
@options.drop_overlap
@options.metric
@options.columns
@options.computing
@options.verbosity
def command(teacher: str, train: str, validation: str, output: str, progress: Any, **settings: Any) -> None:
    """Make a teacher from a pretrained encoder and labelled text."""
    train_rows = options.read_labelled(train, "train", settings)
    validation_rows = options.read_labelled(validation, "validation", settings)
    from compress.training.finetune import finetune

    options.forget_columns(settings)
    made = finetune(teacher, output, train=train_rows, validation=validation_rows, **settings)
    options.show_result(made)
