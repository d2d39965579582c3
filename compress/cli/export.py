"""compress export"""

from typing import Any

import click

from compress.cli import Command, options


@click.command(cls=Command)
@click.option("--model", required=True, metavar="DIR", help="The torch model to export.")
@options.output
@options.force
@options.verbosity
def command(model: str, output: str, force: bool, progress: Any) -> None:
    """Write a fused fp32 ONNX directory that other ONNX clients open."""
    from compress.exporting.export import export

    options.show_result(export(model, output, force=force))
