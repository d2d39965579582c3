"""What compress replay prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.printing import say, show, tell
from compress.escaping.characters import one_line
from compress.escaping.terminal import terminal_cell

if TYPE_CHECKING:
    from compress.benchmarking.replay import ReplayComparison, ReplayOutcome


WIDTH_IN_A_LOG = 160


def show_replay(made: ReplayOutcome) -> None:
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
    say(f"{made.agreement.verdict}: {_reason(made)}")
    click.get_current_context().exit(made.agreement.exit_code)


def _number(row: ReplayComparison, value: float) -> str:
    if row.what == "size":
        return f"{value / 1e6:,.2f} MB"
    return f"x{value:.2f}" if row.what == "speed-up" else f"{value:.4f}"


def _reason(made: ReplayOutcome) -> str:
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
