"""compress prune"""

import dataclasses
from typing import Any

import click

from compress.cli import Command, options
from compress.cli.printing import tell
from compress.recipes.pruning import Pruning

_DEFAULT = Pruning()


@click.command(cls=Command)
@click.option("--model", required=True, metavar="DIR", help="The model to prune.")
@click.option("--heads", default="", metavar="N", help="Attention heads to remove: 60%, 0.6, or a count such as 40.")
@click.option("--ffn", default="", metavar="N", help="Neurons of feed-forward networks to remove, likewise.")
@click.option("--layers", default="", metavar="N", help="Whole layers to remove: a count such as 2, or 50%.")
@click.option("--hidden", default="", metavar="N", help="Hidden width to remove: 25%, in whole head widths.")
@click.option(
    "--vocabulary", multiple=True, metavar="FILE", help="Keep only the subword tokens of this text; may be repeated."
)
@click.option(
    "--max-accuracy-drop",
    type=options.Real(min=0, min_open=True),
    metavar="POINTS",
    help="Remove as many heads and neurons as the interval on --validation allows, before recovery.",
)
@click.option(
    "--speedup",
    type=options.Real(min=1, min_open=True),
    metavar="TIMES",
    help="Remove heads and neurons until the model is so many times as fast on this host.",
)
@click.option(
    "--speedup-batch-size",
    type=options.Whole(min=1),
    default=_DEFAULT.speedup_batch_size,
    show_default=True,
    help="Rows a batch for --speedup.",
)
@click.option("--train", required=True, metavar="FILE", help="Labelled rows for scoring and for recovery.")
@click.option("--validation", metavar="FILE", help="Labelled rows to evaluate each step and select the checkpoint.")
@click.option(
    "--criterion", default=_DEFAULT.criterion, show_default=True, metavar="NAME", help="See 'compress list criteria'."
)
@click.option(
    "--examples",
    type=options.Whole(min=1),
    default=_DEFAULT.examples,
    show_default=True,
    help="Rows of --train used for scoring.",
)
@click.option(
    "--step",
    type=options.Real(min=0, max=1, min_open=True),
    default=_DEFAULT.step,
    show_default=True,
    help="Share of units to remove at a time.",
)
@click.option(
    "--recompute/--no-recompute", default=_DEFAULT.recompute, show_default=True, help="Score again after each step."
)
@click.option(
    "--normalise/--no-normalise",
    default=_DEFAULT.normalise,
    show_default=True,
    help="Divide scores by the norm of their layer.",
)
@click.option(
    "--scope",
    type=click.Choice(["model", "layer"]),
    default=_DEFAULT.scope,
    show_default=True,
    help="Rank units over the whole model, or remove equally many from every layer.",
)
@click.option(
    "--keep-heads",
    type=options.Whole(min=1),
    default=_DEFAULT.keep_heads,
    show_default=True,
    help="Heads that every layer keeps.",
)
@click.option(
    "--multiple",
    type=options.Whole(min=1),
    default=_DEFAULT.multiple,
    show_default=True,
    help="Round feed-forward widths to multiples of this.",
)
@click.option(
    "--schedule",
    type=click.Choice(["steps", "cubic"]),
    default=_DEFAULT.schedule,
    show_default=True,
    help="Remove before the recovery, or mask gradually during it.",
)
@click.option(
    "--recover",
    type=options.Real(min=0),
    default=0.0,
    metavar="EPOCHS",
    help="Distil from the unpruned model afterwards; for few rows in 400 steps instead, below 1 in that share of them.",
)
@click.option(
    "--recovery",
    type=click.Choice(["logits", "hidden", "relations"]),
    default=_DEFAULT.recovery,
    show_default=True,
    help="Signal of --recover: logits, also hidden states, or also token relations.",
)
@click.option("--labels", multiple=True, metavar="DIR", help="Text for --recover, from 'compress label'.")
@click.option(
    "--measure/--no-measure", default=True, show_default=True, help="Time each removal, on one thread or --threads."
)
@options.output
@options.checks
@options.columns
@options.training
@options.verbosity
def command(
    model: str,
    train: str,
    validation: str | None,
    vocabulary: tuple[str, ...],
    labels: tuple[str, ...],
    output: str,
    columns: options.Names,
    checks: dict[str, Any],
    **settings: Any,
) -> None:
    """Remove layers, heads, neurons, hidden width and vocabulary, then recover accuracy.

    Amounts are what is removed. A report in the new directory lists speed-up and accuracy after each removal, with the
    metric after every step as a table and a chart.
    """
    given = {field.name: settings.pop(field.name) for field in dataclasses.fields(Pruning)}
    pruning = Pruning(**{name: value for name, value in given.items() if value is not None})
    pruning.check()
    options.check_idle("--validation FILE", validation, *options.OVERLAP)
    labelled = options.labelled_data(train, validation, columns, **checks)
    corpus = options.open_pool(vocabulary, columns, beside=train or validation) if vocabulary else None
    from compress.pruning.prune import PruningData, prune

    data = PruningData(**vars(labelled), vocabulary=corpus, labels=labels)
    made = prune(model, pruning, output, data=data, **settings)
    options.show_result(made)
    tell(f"Removed: {made.manifest.notes['removed']}. Page: {made.path / 'report.html'}")
