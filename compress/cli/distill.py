"""compress distill"""

from typing import Any, Literal

import click

from compress.cli import Command, options


@click.command(cls=Command)
@click.option("--teacher", required=True, metavar="DIR", help="The teacher: a directory or hub name.")
@click.option(
    "--student", required=True, metavar="RECIPE", help="A name from 'compress list students', or a .toml file."
)
@click.option("--unlabeled", multiple=True, metavar="FILE", help="Text that the teacher labels first; may be repeated.")
@click.option(
    "--rows",
    type=options.Whole(min=0),
    default=0,
    help="Use only so many unlabelled rows, spread evenly; 0 is all.",
    show_default=True,
)
@click.option(
    "--labels",
    multiple=True,
    metavar="DIR",
    help="Instead: an output of 'compress label' or 'compress labels import', or its URI; may be repeated.",
)
@click.option(
    "--combine",
    type=click.Choice(["mean"]),
    help="Average the probabilities of several teachers: --labels of the same texts in the same order. Otherwise they "
    "add up.",
)
@click.option(
    "--weight",
    "weights",
    multiple=True,
    type=options.Real(min=0, min_open=True),
    help="With --combine: the weight of each --labels, in order; by default the same.",
)
@click.option("--train", metavar="FILE", help="Labelled rows to train on, with the teacher's logits.")
@click.option("--validation", metavar="FILE", help="Labelled rows to select the best checkpoint.")
@click.option(
    "--encoder", metavar="DIR|RECIPE", help="The pretrained encoder of the teacher, for students that learn from it."
)
@click.option("--start", metavar="DIR", help="Start from this output of 'compress pretrain'.")
@click.option("--control", is_flag=True, help="Train the control instead: same student and plan, gold labels only.")
@options.max_length
@options.output
@options.checks
@options.columns
@options.training
@options.verbosity
def command(
    teacher: str,
    student: str,
    unlabeled: tuple[str, ...],
    rows: int,
    labels: tuple[str, ...],
    combine: Literal["mean"] | None,
    weights: tuple[float, ...],
    train: str | None,
    validation: str | None,
    encoder: str | None,
    start: str | None,
    control: bool,
    max_length: int | None,
    output: str,
    columns: options.Names,
    checks: dict[str, Any],
    **settings: Any,
) -> None:
    """Train a student to match its teacher.

    Without --validation the best checkpoint is selected by agreement with the teacher on held-out unlabelled text.
    With imported labels the teacher gives tokenizer, start and hidden states, and no logits: any of the same classes
    will do, or a pretrained encoder.
    """
    options.check_idle("a data file", unlabeled or train or validation, *options.COLUMNS)
    options.check_idle("--validation FILE", validation or control, "metric")
    options.check_idle("--train FILE or --validation FILE", train or validation, *options.OVERLAP)
    labelled = options.labelled_data(train, validation, columns, **checks)
    pool = options.open_pool(unlabeled, columns, beside=train or validation) if unlabeled else None
    from compress.training.distill import DistillationData, DistillationOptions, distill

    data = DistillationData(pool, labels, combine or "", weights, labelled=labelled, rows=rows)
    chosen = DistillationOptions(encoder, start, control, max_length or 0)
    options.show_result(distill(teacher, student, output, data, options=chosen, **settings))
