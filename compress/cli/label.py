"""compress label"""

from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import tell
from compress.escaping.uris import without_secrets
from compress.recipes.training import LEAST_MAX_LENGTH


@click.command(cls=Command)
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
@click.option(
    "--shard",
    "part",
    type=options.Share(),
    metavar="K/N",
    help="Label only every N-th shard of 2,048 rows, beginning with the K-th, such as 3/8; "
    "'compress labels merge' joins the N directories.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="ray labels in several worker processes, each with --threads threads (default 1) or a GPU.",
)
@click.option("--workers", type=options.Whole(min=1), help="Workers of Ray; default: as many as there is room for.")
@click.option(
    "--ray-address", metavar="ADDRESS", help="Cluster of Ray that runs, auto on a node of it; default: started here."
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=options.Duration(),
    default=0.0,
    metavar="TIME",
    help="Finish after this time, such as 30m or 2h, with the rows that are labelled then; the same command goes on "
    "with the rest. [default: none]",
)
@options.output_or_uri
@options.pool_columns
@options.placing
@options.force
@options.verbosity
def command(
    teacher: str,
    unlabeled: tuple[str, ...],
    rows: int | None,
    max_length: int | None,
    precision: str,
    part: tuple[int, int] | None,
    engine: str,
    workers: int | None,
    ray_address: str | None,
    time_limit_s: float,
    output: str,
    columns: options.Names,
    **settings: Any,
) -> None:
    """Run the teacher once over unlabelled text and keep its logits. Resumable."""
    options.check_idle("--engine ray", engine == "ray", "workers", "ray_address")
    pool = options.open_pool(unlabeled, columns, rows=rows)
    from compress.benchmarking.results.formatting import plural
    from compress.labelling.label import Engine, LabelOptions, label
    from compress.labelling.ray_engine import RayEngine
    from compress.labelling.shards import Part

    own = Part(*part) if part else None
    chosen = RayEngine(ray_address or "", workers or 0) if engine == "ray" else Engine()
    asked = LabelOptions(max_length or 0, precision, own, chosen, time_limit_s)
    made = label(teacher, pool, output, options=asked, **settings)
    plan = made.manifest.notes
    part_of = f"part {own.number} of {own.of} of " if own and "part" in plan else ""
    tell(
        f"{without_secrets(output)}: {part_of}{made.described_rows} labelled on {plan['runtime']} ({plan['device']}, "
        f"{plural(plan['threads'], 'thread')}, {plan['precision']}{': ' if plan['reason'] else ''}{plan['reason']})"
    )
