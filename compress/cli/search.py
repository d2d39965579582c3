"""compress search"""

import json
from typing import Any

import click
from click.core import ParameterSource

from compress.cli import Command, options
from compress.cli.printing import tell
from compress.errors import ExitCode
from compress.searching.budget import SearchBudget, SearchSettings

# Options of the search that its winner is made with again.
_AGAIN = (
    *("teacher", "unlabeled", "train", "validation", "metric", *options.OVERLAP),
    *("seed", "device", "threads", "precision"),
)


@click.command(cls=Command)
@click.option("--teacher", required=True, metavar="DIR", help="The teacher: a directory or hub name.")
@click.option(
    "--unlabeled",
    required=True,
    multiple=True,
    metavar="FILE",
    help="Text that the teacher labels once, for all students; may be repeated.",
)
@click.option("--train", required=True, metavar="FILE", help="Labelled rows that students learn from too.")
@click.option(
    "--validation", required=True, metavar="FILE", help="Labelled rows that select checkpoints and the winner."
)
@click.option("--test", metavar="FILE", help="Labelled rows that take no part, and that the winner is measured on.")
@click.option(
    "--max-accuracy-drop",
    type=options.Real(min=0),
    metavar="POINTS",
    help="Allow so many points of the metric less than the teacher's: the fastest student wins.",
)
@click.option(
    "--max-latency-ms", type=options.Real(min=0, min_open=True), metavar="MS", help="Median time of one row, at most."
)
@click.option(
    "--min-speedup",
    type=options.Real(min=0, min_open=True),
    metavar="TIMES",
    help="At least so many times as fast as the teacher in torch, one row at a time.",
)
@click.option(
    "--max-size-mb", type=options.Real(min=0, min_open=True), metavar="MB", help="Size of the weights on disk, at most."
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=options.Duration(),
    metavar="TIME",
    help="Timing and training end after this time, such as 30m or 2h. [default: 2h, or none with --trials]",
)
@click.option("--trials", type=options.Whole(min=1), metavar="N", help="Train so many shapes at most.")
@options.output
@options.checks
@options.columns
@options.searching
@options.verbosity
def command(
    teacher: str,
    unlabeled: tuple[str, ...],
    train: str,
    validation: str,
    test: str | None,
    time_limit_s: float | None,
    trials: int | None,
    output: str,
    columns: options.Names,
    checks: dict[str, Any],
    max_accuracy_drop: float | None,
    max_latency_ms: float | None,
    min_speedup: float | None,
    max_size_mb: float | None,
    **settings: Any,
) -> None:
    """Find the student that meets a budget of accuracy, speed and size.

    Shapes of small networks, small transformers and the pruned teacher are timed before they are
    trained, in float32 and int8; those that meet the limits are trained by successive halving. DIR/best is the winner,
    DIR/report.html says how it was found. Without any limit it is the knee of the front. Exit code 1: no student met
    the budget, or --test refutes it.
    """
    context = click.get_current_context()
    budget = SearchBudget(max_accuracy_drop, max_latency_ms, min_speedup, max_size_mb)
    labelled = options.labelled_data(train, validation, columns, **checks)
    pool = options.open_pool(unlabeled, columns, beside=train)
    rows = options.read_labelled(test, "test", columns)
    from compress.reporting.search_page import verdict
    from compress.searching.search import CONTENT_NAME, SearchData, search

    source = context.get_parameter_source
    typed = {name: context.params[name] for name in _AGAIN if source(name) is not ParameterSource.DEFAULT}
    made = search(
        teacher,
        output,
        SearchData(pool, labelled, rows),
        budget=budget,
        settings=SearchSettings(trials, time_limit_s, options.typed(), typed | columns),
        **settings,
    )
    found = json.loads((made / CONTENT_NAME).read_text(encoding="utf-8"))
    tell("\n".join(verdict(found)))
    tell(f"Page: {made / 'report.html'}" + (f"; model: {made / 'best'}" if (made / "best").is_dir() else ""))
    context.exit(ExitCode.DONE if found["met"] else ExitCode.BROKEN)
