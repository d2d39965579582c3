"""compress show"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compress.cli import Command
from compress.cli.printing import can_print, say
from compress.cli.shown import JSON_HELP, print_result

if TYPE_CHECKING:
    from compress.models.manifest import Manifest


@click.command(cls=Command)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def command(name: str, as_json: bool) -> None:
    """Explain a recipe, a plug-in, a model directory or a study.

    Prints the method, its paper, and which parts of the paper's method are missing, also of a recipe of your own by
    its .toml file; of a directory what it was made from, and how the validation score, the loss and its terms went,
    with plots; of a study what of it is made.
    """
    print_result(as_json, partial(_directory if os.path.isdir(name) else _known, name))


def _known(name: str) -> dict[str, Any]:
    from compress.recipes.catalogue import explain, known_as

    found = known_as(name)
    say("\n\n".join(map(explain, found.values())))
    return {"name": name, **found}


def _directory(name: str) -> dict[str, Any]:
    from compress.models.manifest import METRICS_NAME
    from compress.models.model_dir import open_model
    from compress.models.training_log import read_training
    from compress.reporting.terminal import BLOCKS, PLAIN, as_text
    from compress.studies.journal import JOURNAL_NAME, read_journal

    if (journal := Path(name) / JOURNAL_NAME).is_file():
        seconds = {stage: entry.seconds for stage, entry in read_journal(journal).items()}
        for stage, took in seconds.items():
            say(f"{stage}: {'begun' if took is None else f'made in {took:,.0f} s'}")
        return {"path": name, "stages": seconds}
    model, training = open_model(name, classifier=False), None
    say("\n".join(dict.fromkeys(_facts(model.manifest))))
    if (model.path / METRICS_NAME).is_file():
        training = read_training(model.path)
        say(f"\n{as_text(training, BLOCKS if can_print(BLOCKS) else PLAIN)}")
    return {"path": name, **vars(model.manifest), "training": training and training.lines}


def _facts(manifest: "Manifest") -> Iterator[str]:
    """Yield a line for each thing that a manifest says in few words."""
    from compress.benchmarking.results.formatting import plural

    yield f"{manifest.name or 'a model'}, made by compress {manifest.stage}" if manifest.stage else "made elsewhere"
    yield f"task: {manifest.task}" + (f", {plural(len(manifest.labels), 'label')}" if manifest.labels else "")
    noted = manifest.notes.get("labels_of")
    taught = noted if isinstance(noted, list) else ()
    for one in taught:
        if isinstance(one, dict):
            yield f"learned from: {one.get('name')}" + (f" ({one['cost']})" if "cost" in one else "")
    yield from (f"{parent['role']}: {parent['name']}" for parent in manifest.parents)
    yield from (f"data, {one['role']}: {one['name']}, {plural(one['rows'], 'row')}" for one in manifest.data)
    yield from (f"{one['name']} on {one['split']}: {one['value']:.4f}, n = {one['rows']:,}" for one in manifest.metrics)
    for note, value in manifest.notes.items():
        if isinstance(value, str | int | float):
            yield f"{note}: {value:.6g}" if isinstance(value, float) else f"{note}: {value}"
