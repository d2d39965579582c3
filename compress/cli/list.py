"""compress list"""

import click

from compress.cli.printing import say
from compress.errors import CompressError, did_you_mean
from compress.recipes.catalogue import LISTED_KINDS, entries, students


@click.command()
@click.argument("kind", metavar="|".join(LISTED_KINDS))
def command(kind: str) -> None:
    """List recipes and plug-ins."""
    if kind not in LISTED_KINDS:
        raise CompressError(
            f"there is no list of {kind!r}; there is {', '.join(LISTED_KINDS)}.{did_you_mean(kind, LISTED_KINDS)}"
        )
    rows = students() if kind == "students" else entries(kind)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    if kind == "students":
        say(
            "\nPublished: times smaller, performance kept, times as fast, by the survey of Rogers et al. 2020.\n"
            "Measured here: metric, times smaller on disk as a torch model, kept of the teacher's metric, best\n"
            "speed-up. bilstm, cnn, minilm-3 and ngram were trained fully (docs/results.md), the others shortly and\n"
            "at equal cost, on another machine (docs/table1.md). The control is the same student trained on gold\n"
            "labels alone; in brackets what distillation adds, in points.\n"
            "'compress show STUDENT' explains one."
        )
