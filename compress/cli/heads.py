"""compress heads"""

from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import tell


@click.command(cls=Command)
@click.option("--model", required=True, metavar="DIR", help="The model whose heads are studied.")
@click.option("--train", required=True, metavar="FILE", help="Labelled rows that score the heads.")
@click.option("--validation", required=True, metavar="FILE", help="Labelled rows on which their removal is measured.")
@click.option(
    "--criterion",
    "criteria",
    multiple=True,
    metavar="NAME",
    help="An importance criterion; may be repeated; see 'compress list criteria'. [default: all but shapley]",
)
@click.option(
    "--examples",
    type=options.Whole(min=1),
    default=1024,
    show_default=True,
    help="Rows of --train that score the heads.",
)
@click.option(
    "--step",
    type=options.Real(min=0, max=1, min_open=True),
    default=0.1,
    show_default=True,
    help="Share of heads between two points.",
)
@click.option(
    "--normalise/--no-normalise", default=True, show_default=True, help="Divide scores by the norm of their layer."
)
@options.output
@options.checks
@options.columns
@options.computing
@options.verbosity
def command(
    model: str,
    train: str,
    validation: str,
    criteria: tuple[str, ...],
    examples: int,
    step: float,
    normalise: bool,
    output: str,
    columns: options.Names,
    checks: dict[str, Any],
    **settings: Any,
) -> None:
    """Study the importance of a model's attention heads, without changing it.

    Writes heads.json, tables, and a report: importance by criterion, the metric with one head removed, with one head
    kept in a layer, and with more and more heads removed.
    """
    data = options.labelled_data(train, validation, columns, **checks)
    from compress.pruning.head_study import CRITERIA, HeadStudy, head_study

    study = HeadStudy(criteria or CRITERIA, examples, step, normalise)
    made = head_study(model, output, data=data, study=study, **settings)
    tell(f"Page: {made / 'report.html'}; figures: {made / 'heads.json'}")
