"""compress benchmark"""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from compress.cli import options

WIDTH_IN_A_LOG = 180


@click.command()
@click.option("--teacher", required=True, metavar="DIR", help="The teacher, which every model is compared with.")
@click.option("--model", "models", required=True, multiple=True, metavar="DIR", help="A model; repeat for more.")
@click.option("--control", "controls", multiple=True, metavar="DIR", help="A control that does not say so itself.")
@click.option("--data", required=True, metavar="FILE", help="Labelled rows that no model has seen.")
@click.option(
    "--train", "fitted", multiple=True, metavar="FILE", help="Rows that models were fitted on; shared rows are refused."
)
@click.option(
    "--runtime", "runtimes", multiple=True, metavar="NAME", help="See 'compress list runtimes'; may be repeated."
)
@click.option(
    "--batch-size", "batch_sizes", multiple=True, default=("1", "32"), show_default=True, callback=options.numbers,
    metavar="N", help="1 measures latency, larger ones throughput; repeated, or separated by commas.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=3), default=20, show_default=True, help="Interleaved rounds.")
@click.option("-o", "--output", required=True, metavar="FILE", help="Results to write: JSON lines.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where to compute; auto is cuda where there is one.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Processor threads of each model; 0 is one a core.",
)
@options.metric
@options.columns
@options.seed
@options.force
@options.verbosity
def command(
    teacher: str,
    models: tuple[str, ...],
    data: str,
    fitted: tuple[str, ...],
    output: str,
    quiet: bool,
    threads: int,
    device: str,
    **settings: Any,
) -> None:
    """Measure models against their teacher, in one run.

    Speed, accuracy, size and memory, each with its interval. Every model and runtime is a process of its own,
    pinned to its cores; rounds are interleaved.
    """
    from compress.data import open_source
    from compress.label import available_cores
    from compress.measure import benchmark
    from compress.training import resolve_device

    names = ("text_column", "text_pair_column", "label_column")
    source = open_source(
        data, role="test", labelled=True, format=settings["file_format"], **{name: settings[name] for name in names}
    )
    if fitted:
        from compress.data import check_roles

        train = options.open_pool(fitted, settings)
        assert train is not None  # at least one file was given
        check_roles({"train": train, "test": source}, drop_overlap=False)
    options.forget_columns(settings)
    settings["runtimes"] = settings["runtimes"] or None
    lines = benchmark(
        teacher, models, source, output=output, threads=threads or available_cores(), device=resolve_device(device),
        command=shlex.join(["compress", *sys.argv[1:]]), **settings,
    )  # fmt: skip
    if not quiet:
        from rich.console import Console

        from compress.reporting.wording import results_table

        # A pipe has no width: cut columns would make a log useless.
        console = Console() if sys.stdout.isatty() else Console(width=WIDTH_IN_A_LOG)
        console.print(results_table(lines))
        click.echo(f"{output}: {len(lines)} lines")
