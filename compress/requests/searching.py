"""What a search for a student is asked for."""

import json
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from compress.errors import refuse
from compress.fields import option, validated
from compress.models.model_dir import Model, open_model
from compress.requests import (
    OUTPUT,
    AnyModel,
    Checks,
    Duration,
    LabelColumns,
    Output,
    Rows,
    Searching,
    Text,
    Written,
    function,
)

DEFAULT_TIME_LIMIT_S = 7200.0
BEST, CONTENT_NAME = "best", "search.json"


@dataclass(frozen=True)
class SearchResult:
    """What a search has found, in its directory ``path``; ``report.html`` there says how."""

    path: Path

    @cached_property
    def content(self) -> dict[str, Any]:
        """The figures of ``search.json``: ``met`` says whether a student meets the budget."""
        found: dict[str, Any] = json.loads((self.path / CONTENT_NAME).read_text(encoding="utf-8"))
        return found

    @cached_property
    def best(self) -> Model:
        """The winner, a model or a cascade.

        Raises:
            CompressError: there is none.
        """
        refuse(
            (
                not (self.path / BEST).is_dir(),
                f"no student met the budget; {self.path / 'report.html'} says what was tried",
            )
        )
        return open_model(self.path / BEST)


@validated
class SearchLimits:
    """Search budget (accuracy, latency, speed, size) and when a search ends; what is None is not asked for."""

    _: KW_ONLY
    max_accuracy_drop: float | None = option(
        default=None,
        ge=0,
        metavar="POINTS",
        help="Allow so many points of the metric less than the teacher's: the fastest student wins.",
    )
    max_latency_ms: float | None = option(default=None, gt=0, metavar="MS", help="Median time of one row, at most.")
    min_speedup: float | None = option(
        default=None,
        gt=0,
        metavar="TIMES",
        help="At least so many times as fast as the teacher in torch, one row at a time.",
    )
    max_size_mb: float | None = option(default=None, gt=0, metavar="MB", help="Size of the weights on disk, at most.")
    time_limit: Duration | None = option(
        default=None,
        gt=0,
        metavar="TIME",
        help="Timing and training end after this time, such as 30m or 2h. [default: 2h, or none with --trials]",
    )
    trials: int | None = option(default=None, ge=1, metavar="N", help="Train so many shapes at most.")


@validated
class Search(Written[SearchResult], LabelColumns, SearchLimits, Checks, Searching):
    """Find the student that meets a budget of accuracy, speed and size.

    Shapes of n-gram models, CNNs, BiLSTMs, small transformers and the pruned teacher are timed before they are
    trained, in float32 and int8; those that meet the limits are trained by successive halving. DIR/best is the winner,
    DIR/report.html says how it was found. Without any limit it is the knee of the front. Exit code 1: no student met
    the budget, or --test refutes it.
    """

    stage = "compress.searching.search:search"

    teacher: AnyModel = option(help="The teacher: a directory or hub name.", metavar="DIR")
    output: Output = OUTPUT
    _: KW_ONLY
    unlabeled: Text = option(
        help="Text that the teacher labels once, for all students; may be repeated.", metavar="FILE"
    )
    train: Rows = option(help="Labelled rows that students learn from too.", metavar="FILE")
    validation: Rows = option(help="Labelled rows that select checkpoints and the winner.", metavar="FILE")
    test: Rows = option(
        default=None, help="Labelled rows that take no part, and that the winner is measured on.", metavar="FILE"
    )

    def open_made(self, path: Path) -> SearchResult:
        return SearchResult(path)


search = function(Search)
