"""compress run"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from compress.cli import options


@click.command()
@click.argument("study", metavar="STUDY")
@click.option("--data-root", envvar="COMPRESS_DATA", metavar="DIR", help="Where data sets lie. [env: COMPRESS_DATA]")
@click.option(
    "--model-root", envvar="COMPRESS_MODELS", metavar="DIR", help="Where teachers lie. [env: COMPRESS_MODELS]"
)
@click.option("--teacher", metavar="DIR", help="A fine-tuned teacher to use instead of the study's.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Directory of the study; started again it goes on.")
@options.device
@options.threads
@options.force
@options.verbosity
def command(study: str, output: str, quiet: bool, **settings: Any) -> None:
    """Run a whole study, from data to report.

    STUDY is a name from 'compress list studies', or a .toml file. Teacher, labels, students and controls,
    pruning, int8, benchmark, report. Stopped, it goes on where it was.
    """
    from compress.run import REPORT_NAME, RESULTS_NAME, run

    directory = run(study, output, quiet=quiet, **settings)
    if not quiet:
        from compress.report import MARKDOWN_NAME

        click.echo((Path(directory) / REPORT_NAME / MARKDOWN_NAME).read_text(encoding="utf-8"))
        click.echo(
            f"Report: {Path(directory) / REPORT_NAME / 'report.html'}; results: {Path(directory) / RESULTS_NAME}"
        )
