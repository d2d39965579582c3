"""compress pretrain"""

from typing import Any

import click

from compress.cli import Command, options
from compress.errors import CompressError


@click.command(cls=Command)
@click.option("--encoder", required=True, metavar="RECIPE|DIR", help="A teacher's recipe, or a pretrained encoder.")
@click.option(
    "--student", metavar="RECIPE", help="A name from 'compress list students', or a .toml file. Default: the encoder."
)
@click.option("--head-only", is_flag=True, help="Freeze the encoder; train only a head for masked tokens.")
@click.option("--unlabeled", required=True, multiple=True, metavar="FILE", help="Text to train on; may be repeated.")
@click.option("--rows", type=options.Whole(min=1), help="Use only so many rows, spread evenly over the text.")
@click.option(
    "--epochs",
    type=options.Real(min=0, min_open=True),
    help="Passes over the text. Default: the part of the recipe's for these phases.",
)
@options.output
@options.pool_columns
@options.training
@options.verbosity
def command(
    encoder: str,
    student: str | None,
    head_only: bool,
    unlabeled: tuple[str, ...],
    rows: int | None,
    output: str,
    columns: options.Names,
    **settings: Any,
) -> None:
    """Pre-train a student on unlabelled text, once for many tasks.

    Runs the task-independent phases of the student's recipe: masked language modelling, or general distillation from
    the encoder. Give the result to 'compress distill --start', or use it as any other encoder.

    Without --student the encoder itself is trained by masked language modelling, with a new head.
    """
    if student and head_only:
        raise CompressError("--head-only keeps the encoder as it is, so that there is no --student; leave one out")
    pool = options.open_pool(unlabeled, columns, rows=rows)
    from compress.training.pretrain import HEAD_ONLY, WHOLE, pretrain

    options.show_result(pretrain(encoder, student or (HEAD_ONLY if head_only else WHOLE), output, pool, **settings))
