"""Competitors: each module runs the same model in another tool, which is measured beside our runtimes.

A competitor states ``REQUIRES`` (importable module -> pip requirement) and ``DEVICES``; ``NEEDS_TRAIN = True`` where
``build`` reads labelled rows; ``TAGS = True`` where it can also run models that tag words; and, where its requirements
cannot or should not be installed beside ours, ``ENVIRONMENT``: the name of the virtual environment that it runs in,
made by ``benchmarks/competitor_environments.py``. The worker checks the requirements before it calls one of these:

``build(directory, model)`` converts a model, offline, and gets ``train`` and ``gold`` too where it ``NEEDS_TRAIN``;
without it the model is linked. ``start(directory, threads=, device=)`` opens what was made as a
``compress.inference.runners.Runner``. Each does what the documentation of its tool tells a user to do. A competitor
that cannot take a model raises ``compress.errors.Unavailable`` with the reason.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from compress.data.examples import Example
from compress.data.tokenization import maximum_length
from compress.errors import Unavailable
from compress.inference.runners import LoadedModel
from compress.models.manifest import MANIFEST_NAME
from compress.models.model_dir import Model

# Named by its module, so that it is imported with the other requirements, before memory is counted.
TOKENIZERS = {"transformers.models.auto.tokenization_auto": "transformers>=5.23,<6"}
COMPETITOR_NAME = "competitor.json"
INSTALLED_NAME = "installed.txt"  # in an environment: the requirements that it was made for, one a line


def environments_folder() -> Path:
    """Return the folder of the isolated environments: ``$COMPRESS_COMPETITORS``, or one in the user's cache."""
    return Path(os.environ.get("COMPRESS_COMPETITORS") or Path.home() / ".cache" / "compress" / "competitors")


def interpreter(competitor: ModuleType) -> str:
    """Return the Python that a competitor runs in: this one, or that of its environment.

    Raises:
        Unavailable: the environment was not made yet, or for other versions.
    """
    environment = getattr(competitor, "ENVIRONMENT", "")
    if not environment:
        return sys.executable
    folder = environments_folder() / environment
    installed = folder / INSTALLED_NAME
    found = installed.read_text(encoding="utf-8").splitlines() if installed.is_file() else []
    if missing := [requirement for requirement in competitor.REQUIRES.values() if requirement not in found]:
        name = competitor.__name__.rpartition(".")[2].replace("_", "-")
        raise Unavailable(
            f"the competitor {name} runs in {folder}, which does not have {', '.join(missing)}; "
            "type python benchmarks/competitor_environments.py"
        )
    return str(folder / "bin" / "python")


def build(
    competitor: ModuleType, directory: Path, model: Model, train: Sequence[Example], gold: np.ndarray | None
) -> None:
    """Convert a model for a competitor: afterwards it starts the directory."""
    if not hasattr(competitor, "build"):
        link_model(directory, model, weights=True)
    else:
        competitor.build(directory, model, *((train, gold) if getattr(competitor, "NEEDS_TRAIN", False) else ()))


def link_model(directory: Path, model: Model, *, weights: bool) -> None:
    """Put a model's config and tokenizer into a directory, and its weights as links if ``weights``.

    The manifest stays behind: what a competitor makes of the model is no directory of ours.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in model.path.iterdir():
        if file.name in {MANIFEST_NAME, "README.md"} or not file.is_file():
            continue
        if file.suffix != ".safetensors":
            shutil.copyfile(file, directory / file.name)
        elif weights:
            try:  # without a copy where the file system allows it
                os.link(file.resolve(), directory / file.name)
            except OSError:
                shutil.copyfile(file, directory / file.name)
    (directory / COMPETITOR_NAME).write_text(json.dumps({"parameters": model.parameters}), encoding="utf-8")


def token_runner(
    directory: Path, function: Callable[[dict[str, np.ndarray]], np.ndarray], inputs: Sequence[str]
) -> LoadedModel:
    """Return the runner of a placed model: tokenisation as for our own runtimes, then ``function``.

    ``inputs`` are the arrays ``[B, T]`` that ``function`` takes; those the tokenizer does not make are zeros.
    """
    placed = Model(directory)
    tokenizer = placed.tokenizer
    parameters: int = json.loads((directory / COMPETITOR_NAME).read_text(encoding="utf-8"))["parameters"]

    def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
        return function({n: arrays[n] if n in arrays else np.zeros_like(arrays["input_ids"]) for n in inputs})

    max_length = maximum_length(tokenizer, placed.config)
    return LoadedModel(tokenizer, max_length, run, parameters, by_word=placed.task.by_word)
