"""compress run"""

from pathlib import Path
from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import tell
from compress.inference.compute import Compute


@click.command(cls=Command)
@click.argument("study", metavar="STUDY")
@click.option(
    "--data-root", envvar="COMPRESS_DATA", metavar="DIR", help="Folder of the data sets. [env: COMPRESS_DATA]"
)
@click.option(
    "--model-root", envvar="COMPRESS_MODELS", metavar="DIR", help="Folder of the teachers. [env: COMPRESS_MODELS]"
)
@click.option("--teacher", metavar="DIR", help="A fine-tuned teacher to use instead of the study's.")
@click.option("--budget", default="", metavar="NAME", help="One of the study's budgets; default its first.")
@click.option("--only", multiple=True, metavar="NAME", help="Make this student or pruned model only.")
@click.option(
    "-o", "--output", required=True, metavar="DIR", help="Directory of the study; the same command resumes it."
)
@options.running
@options.force
@options.verbosity
def command(study: str, output: str, compute: Compute, **given: Any) -> None:
    """Run a whole study, from data to report.

    STUDY is a name from 'compress list studies', or a .toml file. Teacher, labels, students and controls,
    pruning, int8, benchmark, report. Resumable; started again while it runs, it shares the work.
    """
    from compress.studies.plan import StudySettings
    from compress.studies.run import FailedRows, run

    stage = {name: given.pop(name) for name in ("force", "progress")}
    try:
        run(study, output, settings=StudySettings(**given), compute=compute, **stage)
    except FailedRows:
        _print(Path(output))
        raise
    _print(Path(output))


def _print(directory: Path) -> None:
    """Print the report of a study, if it was made."""
    from compress.reporting.pages import MARKDOWN_NAME
    from compress.studies.run import REPORT_NAME, RESULTS_NAME

    page = directory / REPORT_NAME / MARKDOWN_NAME
    if page.is_file():
        tell(page.read_text(encoding="utf-8"))
        tell(f"Report: {directory / REPORT_NAME / 'report.html'}; results: {directory / RESULTS_NAME}")
