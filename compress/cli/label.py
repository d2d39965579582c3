"""compress label"""

from typing import Any

import click

from compress.cli import options
from compress.cli.printing import say
from compress.escaping.uris import without_secrets
from compress.recipes.training import LEAST_MAX_LENGTH


@click.command()
@click.option("--teacher", required=True, metavar="DIR", help="The teacher: a directory or hub name.")
@click.option(
    "--unlabeled",
    required=True,
    multiple=True,
    metavar="FILE",
    help="Text to label: a file, a pattern, a folder of Parquet files or the URI of one; may be repeated.",
)
@click.option("--rows", type=options.Whole(min=1), help="Use only so many rows, spread evenly over the text.")
@click.option(
    "--max-length", type=options.Whole(min=LEAST_MAX_LENGTH), default=None, help="Cut texts to so many tokens."
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "auto"]),
    default="float32",
    show_default=True,
    help="bfloat16 is faster on GPUs and some CPUs (AMX); logits differ in the third digit. auto compares "
    "both on 512 rows and takes bfloat16 where it is faster and gives at least 99% of the same labels.",
)
@options.output_or_uri
@options.columns
@options.placing
@options.force
@options.verbosity
def command(
    teacher: str,
    unlabeled: tuple[str, ...],
    rows: int | None,
    max_length: int | None,
    output: str,
    columns: options.Names,
    quiet: bool,
    **settings: Any,
) -> None:
    """Run the teacher once over unlabelled text and keep its logits. Resumable."""
    pool = options.open_pool(unlabeled, columns, rows=rows)
    from compress.labelling.label import label

    made = label(teacher, pool, output, max_length=max_length or 0, **settings)
    if not quiet:
        plan, where = made.manifest.notes, without_secrets(output)
        say(
            f"{where}: {made.rows:,} rows labelled on {plan['runtime']} ({plan['device']}, {plan['threads']} threads, "
            f"{plan['precision']}{': ' if plan['reason'] else ''}{plan['reason']})"
        )
