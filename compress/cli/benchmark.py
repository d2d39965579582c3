"""compress benchmark"""

from collections.abc import Sequence
from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import show, tell
from compress.data import Example, check_roles
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.progress import Progress, logger

WIDTH_IN_A_LOG = 180


def _thread_counts(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> tuple[int, ...]:
    """Read thread counts; 0, alone, is one a core."""
    return (0,) if tuple(values) == ("0",) else options.numbers(context, parameter, values)


@click.command(cls=Command)
@click.option("--teacher", required=True, metavar="DIR", help="The teacher, the reference of every comparison.")
@click.option("--model", "models", required=True, multiple=True, metavar="DIR", help="A model; repeat for more.")
@click.option(
    "--control", "controls", multiple=True, metavar="DIR", help="A control whose manifest does not name it as one."
)
@click.option("--data", required=True, metavar="FILE", help="Labelled rows that no model has seen.")
@click.option(
    "--train",
    "fitted",
    multiple=True,
    metavar="FILE",
    help="Rows that models were trained on: check overlap with --data, and fit baselines on the labelled rows.",
)
@click.option(
    "--no-baselines", is_flag=True, help="Do not measure baselines, cheap classifiers fitted on gold labels only."
)
@click.option(
    "--competitor",
    "competitors",
    multiple=True,
    metavar="NAME",
    help="Run the torch models in another tool too: see 'compress list competitors'; 'all' runs every one; repeatable.",
)
@click.option(
    "--competitor-model",
    "competitor_models",
    multiple=True,
    metavar="NAME",
    help="A model for competitors; default all.",
)
@click.option(
    "--reference-model",
    "reference_models",
    multiple=True,
    metavar="NAME",
    help="For scale, measure the speed of bert-base, bert-large, distilbert, albert-base or albert-xxlarge with random "
    "weights; may be repeated.",
)
@click.option(
    "--pruning-steps",
    is_flag=True,
    help="Measure each removal of pruned torch models, for the report's waterfall.",
)
@click.option(
    "--runtime", "runtimes", multiple=True, metavar="NAME", help="See 'compress list runtimes'; may be repeated."
)
@options.batch_sizes("1 measures latency, larger ones throughput; repeated, or separated by commas.")
@click.option(
    "--length",
    "lengths",
    multiple=True,
    callback=options.numbers,
    metavar="N",
    help="Measure rows of exactly so many tokens too, beside the data's own lengths; several as above.",
)
@click.option(
    "--max-length",
    type=options.Whole(min=0),
    default=0,
    metavar="N",
    help="Tokens a text is cut to for models and competitors; baselines read more. Default: as many as each can read.",
)
@click.option(
    "--padded-teacher/--no-padded-teacher",
    default=True,
    show_default=True,
    help="Measure the teacher in torch also with all rows padded to --max-length, or 128 tokens.",
)
@click.option(
    "--half-width",
    type=options.Real(0.025, 1),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="Measure until the 95% interval of every model's speed-up is within this share of it, and that of baselines "
    "and controls within twice as much.",
)
@click.option(
    "--time-limit",
    type=options.Real(1, 86_400),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Begin no further round after so long, if three are done.",
)
@click.option("--rounds", type=options.Whole(min=3, max=10_000), default=100, show_default=True, help="Most rounds.")
@click.option("-o", "--output", required=True, metavar="FILE", help="Results to write: JSON lines.")
@options.device_cpu
@click.option(
    "--threads",
    multiple=True,
    default=("1",),
    show_default=True,
    callback=_thread_counts,
    metavar="N",
    help="CPU threads of each model; several as above; 0 is one a core.",
)
@options.checks
@options.columns
@options.seed
@options.force
@options.verbosity
def command(
    teacher: str,
    models: tuple[str, ...],
    data: str,
    fitted: tuple[str, ...],
    no_baselines: bool,
    output: str,
    threads: tuple[int, ...],
    device: str,
    controls: tuple[str, ...],
    seed: int,
    force: bool,
    columns: options.Names,
    checks: dict[str, Any],
    progress: Progress,
    **chosen: Any,
) -> None:
    """Measure models against their teacher, in one run.

    Speed, quality, size and memory, each with its interval. Every model and runtime is a process of its own,
    pinned to its cores; they take turns until speed-ups are precise or the time is over.
    """
    from compress.benchmarking.benchmark import BenchmarkOutput, benchmark
    from compress.inference.threads import core_count
    from compress.recipes import BenchmarkSettings

    written = BenchmarkOutput(output, force, command=options.typed(), progress=progress)
    options.keep_inputs(written.files)
    options.check_idle("--train FILE", fitted, *options.OVERLAP)
    options.check_idle("--competitor NAME", chosen["competitors"], "competitor_models")
    source = options.open_labelled(data, "test", columns)
    reads = bool(chosen["competitors"]) or not no_baselines
    train, texts = labelled_rows(fitted, columns) if reads else ([], fitted)
    if texts:
        check_roles(
            {"train": options.open_pool(texts, columns, beside=data, role="train"), "test": source}, checks["overlap"]
        )
    lines = benchmark(
        teacher,
        models,
        source,
        BenchmarkSettings(
            baselines=not no_baselines,
            threads=threads if any(threads) else core_count(),
            **checks,
            **chosen,
        ),
        controls=controls,
        train=train or None,
        output=written,
        compute=Compute(device, seed=seed),
    )
    logger.info("test: %s", source.describe())
    from compress.reporting.terminal import results_table

    show(results_table(lines), WIDTH_IN_A_LOG)
    tell(f"{output}: {len(lines)} lines")


def labelled_rows(paths: Sequence[str], columns: options.Names) -> tuple[list[Example], list[str]]:
    """Return the rows that baselines and competitors learn from, and the files that have no labels, such as pools."""
    rows: list[Example] = []
    others = []
    for path in paths:
        try:
            rows += options.read_labelled(path, "train", columns)
        except CompressError as error:
            others.append(path)
            logger.warning("no baseline is fitted on %s: %s", path, error)
    return rows, others
