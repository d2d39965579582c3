"""compress labels: labels from tables, and labels of several commands."""

from typing import Any, cast

import click

from compress.cli import Command, options
from compress.cli.printing import tell
from compress.errors import CompressError
from compress.progress import Progress, logger


@click.group()
def command() -> None:
    """Make labels from a table, join those of several commands, or finish those of one that was stopped."""


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(name.strip() for name in value.split(",")) if value is not None else ()


@command.command("import", cls=Command)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--probabilities", callback=_names, metavar="A,B,...", help="Columns of probabilities or counts.")
@click.option("--logits", callback=_names, metavar="A,B,...", help="Columns of logits.")
@click.option("--label", metavar="NAME", help="Column of one label for each text.")
@click.option("--confidence", metavar="NAME", help="Column of the label's probability, from 0 to 1.")
@click.option(
    "--smoothing",
    type=options.Real(min=0, max=1, max_open=True),
    help="Share of each row that is spread evenly over all classes. Default: 0.1 for labels without a confidence, "
    "otherwise 0.",
)
@click.option(
    "--classes",
    callback=_names,
    metavar="A,B,...",
    help="The classes: names of the columns, in their order, or all labels. Default: the columns' own names, or the "
    "labels that occur, sorted.",
)
@options.output
@options.text_columns
@options.force
@options.verbosity
def _import(
    files: tuple[str, ...],
    probabilities: tuple[str, ...],
    logits: tuple[str, ...],
    label: str | None,
    confidence: str | None,
    smoothing: float | None,
    classes: tuple[str, ...],
    output: str,
    columns: options.Names,
    **settings: Any,
) -> None:
    """Make a label directory from a table: annotators' votes, another model's probabilities, labels.

    Give one of --probabilities, --logits and --label. 'compress distill --labels DIR' then learns from it, with any
    teacher of the same classes.
    """
    given = {"probabilities": probabilities, "logits": logits, "labels": (label,) if label else ()}
    kinds = [kind for kind, named in given.items() if named]
    if len(kinds) != 1:
        raise CompressError(
            "what do the columns say? Give one of --probabilities A,B,... --logits A,B,... --label NAME"
        )
    from compress.data import open_source
    from compress.labelling.import_labels import LabelValues, import_labels

    values = LabelValues(cast(Any, kinds[0]), given[kinds[0]], classes, confidence, smoothing)
    values.check()
    sources = [
        open_source(file, role="unlabeled", labelled=False, values=values.all_columns, **columns) for file in files
    ]
    made = import_labels(sources, values, output, **settings)
    for source in sources:
        logger.info("labels: %s", source.describe())
    names = made.manifest.labels
    shown = f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}"
    tell(f"{output}: {made.rows:,} rows of {len(names)} classes ({shown})")


@command.command(cls=Command)
@click.argument("parts", nargs=-1, required=True, metavar="DIR...")
@options.output
@options.force
@options.verbosity
def merge(parts: tuple[str, ...], output: str, force: bool, progress: Progress) -> None:
    """Join what 'compress label --shard 1/N' to 'N/N' wrote: the labels of one command that labelled the whole text."""
    from compress.labelling.parts import merge_labels

    made = merge_labels(parts, output, force=force, progress=progress)
    tell(f"{output}: {made.rows:,} rows of {len(parts):,} parts")


@command.command(cls=Command)
@click.argument("directory", metavar="DIR")
@options.verbosity
def close(directory: str, progress: Progress) -> None:
    """Finish what a stopped 'compress label -o DIR' has labelled, as it is; the same command still goes on with it."""
    from compress.labelling.parts import close_labels

    made = close_labels(directory)
    tell(f"{made.path}: {made.described_rows}")
