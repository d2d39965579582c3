"""compress quantize"""

from collections.abc import Mapping
from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import tell


@click.command(cls=Command)
@click.option("--model", required=True, metavar="DIR", help="The model to quantize: torch, or fp32 ONNX.")
@click.option(
    "--method",
    metavar="NAME",
    help="See 'compress list quantizers'; 'auto' tries several on --validation and keeps the fastest that passes. "
    "Default: the method that the model was trained for, or onnx-dynamic.",
)
@options.batch_sizes(
    "Sizes that int8 is timed at on --validation: on average over them it has to be faster than fp32. Repeated, or "
    "separated by commas."
)
@click.option(
    "--option",
    "given",
    multiple=True,
    callback=options.assignments,
    metavar="NAME=VALUE",
    help="An option of the method, such as embeddings=float16; may be repeated.",
)
@click.option(
    "--keep-fp32",
    type=options.Whole(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Leave the N encoder layers that are most sensitive, measured on --train, in fp32.",
)
@click.option("--train", metavar="FILE", help="Labelled rows to measure sensitivities, or ranges of activations, on.")
@click.option("--validation", metavar="FILE", help="Labelled rows to check int8 on; without them it is unchecked.")
@click.option(
    "--max-accuracy-drop",
    type=options.Real(min=0),
    default=1.0,
    show_default=True,
    help="Points of the metric that int8 may lose before fp32 is kept.",
)
@options.output
@options.checks
@options.columns
@options.placing
@options.force
@options.verbosity
def command(
    model: str,
    method: str | None,
    given: dict[str, Any],
    keep_fp32: int,
    max_accuracy_drop: float,
    batch_sizes: tuple[int, ...],
    train: str | None,
    validation: str | None,
    output: str,
    columns: options.Names,
    checks: dict[str, Any],
    **settings: Any,
) -> None:
    """Quantize weights to int8, accepted only if accurate and faster.

    A model that fails the check on --validation becomes fp32 ONNX, with the reason in its manifest.
    """
    options.check_idle("a data file", train or validation, *options.COLUMNS)
    options.check_idle("--validation FILE", validation, "batch_sizes", "max_accuracy_drop", "metric", *options.OVERLAP)
    data = options.labelled_data(train, validation, columns, **checks)
    from compress.quantization.candidates import Quantization
    from compress.quantization.quantize import quantize

    chosen = Quantization(
        method, given, keep_fp32=keep_fp32, max_accuracy_drop=max_accuracy_drop, batch_sizes=batch_sizes
    )
    made = quantize(model, output, quantization=chosen, data=data, **settings)
    options.show_result(made)
    for note, value in made.manifest.notes.items():
        if isinstance(value, str | int | float):
            tell(f"  {note}: {value}")
    for name, outcome in made.manifest.notes.get("candidates", {}).items():
        tell(f"  {name}: {outcome if isinstance(outcome, str) else _in_words(outcome)}")


def _in_words(outcome: Mapping[str, Any]) -> str:
    speeds = [f"x{found['value']:.2f} at batch size {size}" for size, found in outcome["speedup"].items()]
    quality = f"{outcome['int8']:.4g} where fp32 has {outcome['fp32']:.4g}"
    return ", ".join([*(outcome["reasons"] or speeds), quality, f"{outcome['bytes'] / 1e6:.1f} MB"])
