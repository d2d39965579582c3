"""compress finetune"""

from typing import Any

import click

from compress.cli import options


@click.command()
@click.option("--teacher", required=True, metavar="RECIPE|MODEL", help="A recipe, an encoder's directory or hub name.")
@click.option("--train", required=True, metavar="FILE", help="Labelled text to train on.")
@click.option("--validation", required=True, metavar="FILE", help="Labelled text that selects the best checkpoint.")
@options.output
@options.drop_overlap
@options.metric
@options.columns
@options.computing
@options.verbosity
def command(teacher: str, train: str, validation: str, output: str, progress: Any, **settings: Any) -> None:
    """Fine-tune a teacher from a pretrained encoder and labelled text."""
    train_rows = options.read_labelled(train, "train", settings)
    validation_rows = options.read_labelled(validation, "validation", settings)
    from compress.data import LabelledData
    from compress.training.finetune import finetune

    data = LabelledData(train_rows, validation_rows, settings["metric"], settings["drop_overlap"])
    made = finetune(
        teacher, output, data, compute=options.compute_of(settings), force=settings["force"], progress=progress
    )
    options.show_result(made)
