"""The commands that make what a search chose again, from the options that it was called with."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.escaping.uris import text_without_secrets
from compress.files import write_atomically
from compress.host import without_home
from compress.recipes.catalogue import student_toml
from compress.searching.exploration import Exploration
from compress.searching.joining import Joined
from compress.searching.making import pruning_of
from compress.searching.space import QUANTIZER
from compress.searching.trials import Trial

BEST = "best"
# What commands do not take of a search's options.
_OF_POOL = {"unlabeled"}
_OF_TRAINING = {"teacher", "unlabeled", "train", "seed", "precision"}
_OF_LABELS = {"train", "validation", "metric", "drop_overlap", "refuse_overlap", "label_column", "seed", "precision"}


def making_again(
    explored: Exploration,
    chosen: Sequence[Trial],
    joined: Joined | None,
    working: Path,
    output: Path,
    typed: Mapping[str, Any],
) -> str:
    """Write the recipes of the students that were chosen, and return the commands that make ``best`` of them again.

    Args:
        working: the folder that becomes ``output``.
        typed: the options of the search that name its data and how it computes.
    """
    commands, members = [], []
    for number, trial in enumerate(chosen, 1):
        one = f"-{number}" if joined else ""
        student, model = f"student{one}", f"model{one}" if joined else BEST
        if trial.shape.is_pruned:
            commands += _pruning(trial, typed, f"labels{one}", student)
        else:
            name = f"{BEST}{one}.toml"
            recipe, read = explored.trainer.recipe(trial.shape, trial.last.rung)
            write_atomically(working / name, student_toml(recipe))
            commands.append(
                command_words("distill", {**typed, "rows": read or None, "student": output / name}, student)
            )
        commands.append(trial.shape.deploying(student, model))
        members.append(model)
    if joined:
        members.append("teacher-int8")  # what a cascade may lose is against the last model, also where it is left out
        commands.append(command_words("quantize", {"model": typed["teacher"], "method": QUANTIZER}, members[-1]))
        options = {
            **_without(typed, _OF_TRAINING),
            "model": tuple(members),
            "max_accuracy_drop": explored.budget.max_accuracy_drop,
            "device": "cpu",  # as it was timed
            "threads": explored.trainer.validation.threads,
        }
        commands.append(command_words("cascade", options, BEST))
    return without_home(" && ".join(map(shlex.join, commands)))


def _pruning(trial: Trial, typed: Mapping[str, Any], labels: str, output: str) -> list[list[str]]:
    pruning = pruning_of(trial.shape, trial.last.rung)
    options = {**_without(typed, _OF_POOL), **pruning, "labels": labels, "no_measure": True}
    options["model"] = options.pop("teacher")
    return [command_words("label", _without(typed, _OF_LABELS), labels), command_words("prune", options, output)]


def _without(options: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def command_words(command: str, options: Mapping[str, Any], output: str) -> list[str]:
    """Return a command with its options as words; those that are None, False or empty are not given."""
    found = ["compress", command]
    for name, value in {**options, "output": output}.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, tuple) else [value]:
            given = text_without_secrets(f"{one:.6g}" if isinstance(one, float) else str(one))
            found += [option] if one is True else [] if one in (None, "") or one is False else [option, given]
    return found
