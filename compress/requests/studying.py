"""What a study is asked for."""

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Literal

from compress.fields import option, validated
from compress.models.compute import PRECISIONS, TRACKERS
from compress.requests import (
    FORCE,
    PRECISION,
    REPORT_TO,
    AnyModel,
    File,
    Names,
    Output,
    Placing,
    Recipe,
    Request,
    function,
)

RESULTS_NAME = "results.jsonl"
REPORT_NAME = "report"


@validated
class Run(Request[Path], Placing):
    """Run a whole study, from data to report.

    STUDY is a name from 'compress list studies', or a .toml file. Teacher, labels, students and controls,
    pruning, int8, benchmark, report. Resumable; started again while it runs, it shares the work.
    """

    stage = "compress.studies.run:run"

    study: Recipe = option(
        argument=True, has_option=False, metavar="STUDY", help="A name from 'compress list studies', or a .toml file."
    )
    output: Output = option(
        help="Directory of the study; the same command resumes it.", metavar="DIR", decides=False, required=True
    )
    _: KW_ONLY
    data_root: File | None = option(default=None, metavar="DIR", help="Folder of the data sets. [env: COMPRESS_DATA]")
    model_root: File | None = option(default=None, metavar="DIR", help="Folder of the teachers. [env: COMPRESS_MODELS]")
    teacher: AnyModel | None = option(
        default=None, metavar="DIR", help="A fine-tuned teacher to use instead of the study's."
    )
    budget: str = option(default="", metavar="NAME", help="One of the study's budgets; default its first.")
    only: Names = option(default=(), metavar="NAME", help="Make this student or pruned model only.")
    precision: Literal[PRECISIONS] = PRECISION  # type: ignore[valid-type]
    report_to: Literal[TRACKERS] | None = REPORT_TO  # type: ignore[valid-type]
    force: bool = FORCE


run = function(Run)
