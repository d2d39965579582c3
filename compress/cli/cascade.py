"""compress cascade"""

from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import tell


@click.command(cls=Command)
@click.option(
    "--model",
    "models",
    required=True,
    multiple=True,
    metavar="DIR",
    help="From fast to accurate, two or more: all ONNX, or all torch. Those that do not help are left out.",
)
@click.option("--validation", required=True, metavar="FILE", help="Labelled rows that choose the thresholds.")
@click.option("--test", metavar="FILE", help="Labelled rows that check the cascade once.")
@click.option(
    "--max-accuracy-drop",
    type=options.Real(min=0),
    default=1.0,
    show_default=True,
    help="Points of the metric that the cascade may lose against the last model, by the 95% interval on --validation.",
)
@options.output
@options.checks
@options.columns
@options.placing
@options.force
@options.verbosity
def command(
    models: tuple[str, ...],
    validation: str,
    test: str | None,
    output: str,
    columns: options.Names,
    checks: dict[str, Any],
    **settings: Any,
) -> None:
    """Join models: the fast answer what they are sure of, the accurate the rest.

    Chooses the thresholds of least mean latency that keep the accuracy of the last --model. 'compress predict' and
    'compress benchmark' take the result as they take a model.
    """
    labelled = options.labelled_data(None, validation, columns, **checks)
    options.check_idle("--test FILE", test, *options.OVERLAP)
    checked = options.read_labelled(test, "test", columns)
    from compress.cascades.cascade import FOLDER, CascadeData, cascade, cascade_verdict

    made = cascade(models, output, data=CascadeData(labelled, checked), **settings)
    options.show_result(made)
    tell("\n".join(cascade_verdict(made)))
    tell(f"Page: {made.path / FOLDER / 'report.html'}")
