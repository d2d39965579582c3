"""compress list"""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from compress.cli import Command
from compress.cli.printing import say
from compress.cli.shown import JSON_HELP, print_result
from compress.errors import did_you_mean, refuse
from compress.recipes.catalogue import (
    BELOW_CONTROL,
    LISTED_KINDS,
    STUDENT_HEADINGS,
    behind,
    entries,
    in_short,
    students,
)

ENOUGH = 30  # characters
ABOUT_STUDENTS = """
Published: times smaller, performance kept, times as fast, by the survey of Rogers et al. 2020.
Measured here: times smaller on disk (torch, or rounded as it was trained to be), kept of the teacher's metric, best
speed-up.
Study: the study and its first test set; +N: N sets more. Compare rows of one study only; each has its own teacher,
and 'compress show STUDY' explains it.
Steps: optimiser steps x rows.
Its control: the same student on gold labels alone; in brackets what distillation adds, in points, before weights are
rounded to int8 or less.
500 labels: what distillation adds where teacher and control have 500 labels, with its 95% interval (study table2).

'compress show STUDENT' explains one, 'compress distill --student STUDENT' trains it.
{encoder} take '--encoder DIR' too: what the teacher was fine-tuned from.

{below}"""


@click.command(cls=Command)
@click.argument("kind", metavar="|".join(LISTED_KINDS))
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def command(kind: str, as_json: bool) -> None:
    """List recipes and plug-ins."""
    refuse(
        (
            kind not in LISTED_KINDS,
            f"there is no list of {kind!r}; there is {', '.join(LISTED_KINDS)}.{did_you_mean(kind, LISTED_KINDS)}",
        )
    )
    print_result(as_json, _students if kind == "students" else partial(_entries, kind))


def _entries(kind: str) -> dict[str, Any]:
    found = entries(kind)
    _say_columns(found)
    return {kind: [{"name": name, "summary": summary} for name, summary in found]}


def _students() -> dict[str, Any]:
    known = students()
    _say_columns([STUDENT_HEADINGS, *map(in_short, known)])
    read_encoder = ", ".join(one.name for one in known if "--encoder" in one.command)
    say(ABOUT_STUDENTS.format(encoder=read_encoder, below=BELOW_CONTROL))
    _say_columns([(one.name, why) for one in known if (why := behind(one))])
    figures = [dict(zip(STUDENT_HEADINGS[1:], in_short(one)[1:], strict=True)) for one in known]
    return {
        "students": [
            {"name": one.name, "summary": one.description.strip(), "figures": said, "below_control": behind(one)}
            for one, said in zip(known, figures, strict=True)
        ]
    }


def _say_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; on a terminal the last one is wrapped, where there is room for some words of it."""
    *widths, longest = (max(map(len, column)) for column in zip(*rows, strict=True))
    left = shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths)
    last_width = left if sys.stdout.isatty() and left > ENOUGH else longest
    for *cells, last in rows:
        first, *others = textwrap.wrap(last, last_width) or [""]
        start = "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=True))
        say("\n".join([(start + first).rstrip(), *(" " * len(start) + line for line in others)]))
