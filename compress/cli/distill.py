"""compress distill"""

from __future__ import annotations

from typing import Any

import click

from compress.cli import options


@click.command()
@click.option("--teacher", required=True, metavar="DIR", help="The teacher: a directory or hub name.")
@click.option(
    "--student", required=True, metavar="RECIPE", help="A name from 'compress list students', or a .toml file."
)
@click.option("--unlabeled", multiple=True, metavar="FILE", help="Text that the teacher labels first; may be repeated.")
@click.option("--rows", type=click.IntRange(min=1), help="Use only so many unlabelled rows, spread evenly.")
@click.option("--labels", multiple=True, metavar="DIR", help="Or: what 'compress label' wrote; may be repeated.")
@click.option("--train", metavar="FILE", help="Gold rows: taught with the teacher's logits too.")
@click.option("--validation", metavar="FILE", help="Gold rows that select the best checkpoint.")
@click.option(
    "--encoder", metavar="DIR|RECIPE", help="What the teacher was fine-tuned from, where a student learns from it."
)
@click.option("--start", metavar="DIR", help="What 'compress pretrain' made of this student: go on from there.")
@click.option("--control", is_flag=True, help="Train the control instead: same student and plan, gold labels only.")
@options.output
@options.drop_overlap
@options.metric
@options.columns
@options.computing
@options.verbosity
def command(
    teacher: str,
    student: str,
    unlabeled: tuple[str, ...],
    rows: int | None,
    labels: tuple[str, ...],
    train: str | None,
    validation: str | None,
    output: str,
    **settings: Any,
) -> None:
    """Train a small student to say what its teacher says.

    Without --validation the best checkpoint is selected by agreement with the teacher on held-out unlabelled text.
    """
    train_rows = options.read_labelled(train, "train", settings)
    validation_rows = options.read_labelled(validation, "validation", settings)
    pool = options.open_pool(unlabeled, settings, rows=rows or 0)
    from compress.training.distill import distill

    options.forget_columns(settings)
    made = distill(
        teacher,
        student,
        output,
        unlabeled=pool,
        labels=labels,
        train=train_rows,
        validation=validation_rows,
        **settings,
    )
    options.show_result(made)
