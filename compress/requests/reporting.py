"""What a report is asked for."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic

from compress.fields import Holds, option, validated
from compress.requests import FORCE, LabelColumns, Names, Output, Paths, Request, function

if TYPE_CHECKING:
    Results = Any
    Tests = Sequence[Any]
else:
    # One of them, such as what benchmark returns, is a list of it.
    _several = pydantic.BeforeValidator(lambda one: one if isinstance(one, list | tuple) else (one,))
    Results = Annotated[Paths, Holds("file"), _several]
    Tests = Annotated[tuple[Any, ...], Holds("rows"), pydantic.Strict(False)]


@validated
class Report(Request[Path], LabelColumns):
    """Write results as an HTML page, Markdown and JSON."""

    stage = "compress.reporting.report:report"

    results: Results = option(
        help="Files of 'compress benchmark'; hosts may differ, but are never compared.",
        metavar="RESULTS...",
        argument=True,
        has_option=False,
    )
    output: Output = option(help="Directory to write the pages to; no model.", metavar="DIR", required=True)
    _: KW_ONLY
    curves: Paths = option(
        default=(),
        metavar="FILE",
        flag="--curve",
        help="A model's directory, for the curves of its training and of its pruning; or one of these files.",
    )
    title: str = option(default="", metavar="TEXT", help="Heading; default the study's name.")
    max_accuracy_drop: float = option(
        default=1.0, ge=0, metavar="POINTS", help="Budget that verdicts are about, in points.", allow_inf_nan=False
    )
    prices: Names = option(
        default=(),
        metavar="MACHINE=AMOUNT",
        flag="--price",
        help="What an hour of a whole machine costs: cpu=0.34, cpu:8=0.34 (with 8 threads), cuda=2.5; may be repeated.",
    )
    currency: str = option(default="", metavar="TEXT", needs=("prices",), help="Currency written after amounts.")
    texts: Tests = option(
        default=(),
        metavar="FILE",
        help="The test data, to show the texts of flipped rows in the page; may be repeated.",
    )
    force: bool = FORCE


report = function(Report)
