"""compress finetune"""

from typing import Any

import click

from compress.cli import Command, options


@click.command(cls=Command)
@click.option("--teacher", required=True, metavar="RECIPE|MODEL", help="A recipe, an encoder's directory or hub name.")
@click.option("--train", required=True, metavar="FILE", help="Labelled text to train on.")
@click.option("--validation", required=True, metavar="FILE", help="Labelled text that selects the best checkpoint.")
@options.max_length
@options.output
@options.checks
@options.columns
@options.training
@options.verbosity
def command(
    teacher: str,
    train: str,
    validation: str,
    max_length: int | None,
    output: str,
    columns: options.Names,
    checks: dict[str, Any],
    **settings: Any,
) -> None:
    """Fine-tune a teacher from a pretrained encoder and labelled text."""
    data = options.labelled_data(train, validation, columns, **checks)
    from compress.training.finetune import finetune

    options.show_result(finetune(teacher, output, data, max_length=max_length or 0, **settings))
