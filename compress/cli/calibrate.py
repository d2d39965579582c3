"""compress calibrate"""

from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import tell


@click.command(cls=Command)
@click.option("--model", required=True, metavar="DIR", help="A classifier: torch or ONNX, also int8.")
@click.option(
    "--validation", required=True, metavar="FILE", help="Labelled rows to calibrate on, which it was not trained on."
)
@click.option(
    "--accept-at",
    type=options.Percent(),
    metavar="SHARE",
    help="Find the confidence from which predictions are right so often, such as 95%, with 95% certainty.",
)
@click.option(
    "--accept-by",
    type=click.Choice(["overall", "class"]),
    help="One threshold for all predictions, or one for each class, that holds for this class. [default: overall]",
)
@options.output
@options.columns
@options.placing
@options.force
@options.verbosity
def command(
    model: str,
    validation: str,
    accept_at: float | None,
    accept_by: Any,
    output: str,
    columns: options.Names,
    **settings: Any,
) -> None:
    """Make probabilities right, and find when to accept them.

    The temperature becomes part of the model, so that every client computes calibrated probabilities. With --accept-at,
    'compress predict' says of each prediction whether it is accepted. Writes a page with the reliability diagram.
    """
    options.check_idle("--accept-at 95%", accept_at, "accept_by")
    data = options.labelled_data(None, validation, columns)
    from compress.calibration.calibrate import FOLDER, Acceptance, calibrate, calibration_verdict

    acceptance = None if accept_at is None else Acceptance(accept_at, accept_by or "overall")
    made = calibrate(model, output, data=data, acceptance=acceptance, **settings)
    options.show_result(made)
    tell("\n".join(calibration_verdict(made)))
    tell(f"Page: {made.path / FOLDER / 'report.html'}")
