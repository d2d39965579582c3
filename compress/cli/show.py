"""compress show"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli import Command
from compress.cli.printing import can_print, say

if TYPE_CHECKING:
    from compress.models.manifest import Manifest


@click.command(cls=Command)
@click.argument("name")
def command(name: str) -> None:
    """Explain a recipe, a plug-in, a model directory or a study.

    Prints the method, its paper, and which parts of the paper's method are missing, also of a recipe of your own by
    its .toml file; of a directory what it was made from, and how the validation score, the loss and its terms went,
    with plots; of a study what of it is made.
    """
    if os.path.isdir(name):
        from compress.models.cascade_dir import open_model
        from compress.models.manifest import METRICS_NAME
        from compress.models.training_log import read_training
        from compress.reporting.terminal import BLOCKS, PLAIN, as_text
        from compress.studies.journal import JOURNAL_NAME, read_journal

        if (journal := Path(name) / JOURNAL_NAME).is_file():
            for stage, entry in read_journal(journal).items():
                say(f"{stage}: {'begun' if entry.seconds is None else f'made in {entry.seconds:,.0f} s'}")
            return
        model = open_model(name, classifier=False)
        say("\n".join(dict.fromkeys(_facts(model.manifest))))
        if (model.path / METRICS_NAME).is_file():
            say(f"\n{as_text(read_training(model.path), BLOCKS if can_print(BLOCKS) else PLAIN)}")
        return
    from compress.recipes.catalogue import describe

    say(describe(name))


def _facts(manifest: "Manifest") -> Iterator[str]:
    """Yield a line for each thing that a manifest says in few words."""
    from compress.benchmarking.results.formatting import plural

    yield f"{manifest.name or 'a model'}, made by compress {manifest.stage}" if manifest.stage else "made elsewhere"
    yield f"task: {manifest.task}" + (f", {plural(len(manifest.labels), 'label')}" if manifest.labels else "")
    noted = manifest.notes.get("labels_of")
    taught = noted if isinstance(noted, list) else ()
    yield from (f"learned from: {one.get('name')}" for one in taught if isinstance(one, dict))
    yield from (f"{parent['role']}: {parent['name']}" for parent in manifest.parents)
    yield from (f"data, {one['role']}: {one['name']}, {plural(one['rows'], 'row')}" for one in manifest.data)
    yield from (f"{one['name']} on {one['split']}: {one['value']:.4f}, n = {one['rows']:,}" for one in manifest.metrics)
    for note, value in manifest.notes.items():
        if isinstance(value, str | int | float):
            yield f"{note}: {value:.6g}" if isinstance(value, float) else f"{note}: {value}"
