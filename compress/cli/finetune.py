"""compress finetune"""

from typing import Any

import click

from compress.cli import options
from compress.inference.compute import Compute


@click.command()
@click.option("--teacher", required=True, metavar="RECIPE|MODEL", help="A recipe, an encoder's directory or hub name.")
@click.option("--train", required=True, metavar="FILE", help="Labelled text to train on.")
@click.option("--validation", required=True, metavar="FILE", help="Labelled text that selects the best checkpoint.")
@options.output
@options.drop_overlap
@options.metric
@options.columns
@options.training
@options.verbosity
def command(
    teacher: str,
    train: str,
    validation: str,
    output: str,
    columns: options.Names,
    compute: Compute,
    **settings: Any,
) -> None:
    """Fine-tune a teacher from a pretrained encoder and labelled text."""
    data = options.labelled_data(train, validation, columns, settings["metric"], settings["drop_overlap"])
    from compress.training.finetune import finetune

    made = finetune(teacher, output, data, compute=compute, force=settings["force"], progress=settings["progress"])
    options.show_result(made)
