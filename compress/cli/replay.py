"""compress replay"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli import Command, options
from compress.cli.printing import say, show, tell
from compress.escaping.characters import one_line
from compress.escaping.terminal import terminal_cell
from compress.progress import Progress

if TYPE_CHECKING:
    from compress.benchmarking.replay import Replay, ReplayComparison


WIDTH_IN_A_LOG = 160


@click.command(cls=Command)
@click.argument("lock", metavar="LOCK")
@click.option("--data", required=True, metavar="FILE", help="The test rows that the lock names.")
@click.option("--train", multiple=True, metavar="FILE", help="The training rows that the lock names, if it does.")
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="DIR",
    help="Folder to search for models; default the lock's folder and the current directory.",
)
@click.option("-o", "--output", required=True, metavar="FILE", help="New results to write: JSON lines.")
@options.columns
@options.force
@options.verbosity
def command(
    lock: str,
    data: str,
    train: tuple[str, ...],
    roots: tuple[str, ...],
    output: str,
    force: bool,
    progress: Progress,
    columns: options.Names,
) -> None:
    """Run a benchmark again from its lock and compare every figure.

    LOCK is the .lock.json beside a result file. Models are found by their hashes, and data must be the same rows.
    Exit code 0: the figures agree, 1: one differs, 3: undecided, on another host.
    """
    from compress.benchmarking.benchmark import BenchmarkOutput, labelled_rows
    from compress.benchmarking.replay import replay

    written = BenchmarkOutput(output, force, command=options.typed(), progress=progress)
    options.keep_inputs(written.files)
    rows = options.read_labelled(data, "test", columns)
    if train:
        options.open_pool(train, columns, beside=data, role=None)  # refuses what cannot be read at all
    made = replay(lock, rows, roots=roots, train=labelled_rows(train, columns)[0] or None, output=written)
    _show(made)
    say(f"{made.agreement.verdict}: {_reason(made)}")
    click.get_current_context().exit(made.agreement.exit_code)


def _show(made: Replay) -> None:
    from rich.table import Table

    table = Table()
    for heading in ("model", "runtime", "setting", "figure", "lock", "interval", "now", ""):
        table.add_column(heading, justify="right" if heading in {"lock", "interval", "now"} else "left")
    for row in made.agreement.comparisons:
        before, low, high = (_number(row, value) for value in row.before)
        cells = (
            row.model,
            row.runtime,
            row.setting,
            row.what,
            before,
            f"{low} to {high}",
            _number(row, row.after),
            row.outcome,
        )
        table.add_row(*map(terminal_cell, cells))
    show(table, WIDTH_IN_A_LOG)
    for missing in made.agreement.missing:
        tell(f"not measured again: {one_line(missing)}")
    for name, (before, after) in made.agreement.versions.items():
        tell(f"version of {one_line(name)}: {one_line(before)} then, {one_line(after)} now")


def _number(row: ReplayComparison, value: float) -> str:
    if row.what == "size":
        return f"{value / 1e6:,.2f} MB"
    return f"x{value:.2f}" if row.what == "speed-up" else f"{value:.4f}"


def _reason(made: Replay) -> str:
    from compress.benchmarking.replay import DIFFERS, OTHER_HOST, OTHER_METHOD

    outcomes = [comparison.outcome for comparison in made.agreement.comparisons]
    if made.agreement.verdict == "differs":
        return f"{outcomes.count(DIFFERS)} of {len(outcomes)} figures are outside their intervals"
    reasons = []
    if OTHER_HOST in outcomes:
        reasons.append(f"{outcomes.count(OTHER_HOST)} speed-ups are of another host")
    if OTHER_METHOD in outcomes:
        reasons.append(f"{outcomes.count(OTHER_METHOD)} speed-ups were measured by another method")
    if made.agreement.missing:
        reasons.append(f"{len(made.agreement.missing)} configurations were not measured again")
    rest = f"{sum(o not in (OTHER_HOST, OTHER_METHOD) for o in outcomes)} figures hold"
    return "; ".join([*reasons, rest])
