"""Pruning steps: the intermediate shapes of a pruned model, to measure the effect of each removal.

``compress prune`` notes the config after each removal in the manifest. A model is as fast with random weights as with
trained ones, so that each shape but the last, which is the pruned model itself, is built with random weights. It reads
rows as the pruned model does, whose tokenizer it has (the vocabulary is cut before all else); it has no quality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from compress.errors import CompressError
from compress.models.manifest import Manifest, describe_files
from compress.models.model_dir import ModelDir, parent_entry
from compress.models.removal_history import REMOVALS, _shapes

if TYPE_CHECKING:
    from compress.benchmarking.candidates import Candidate


@dataclass(frozen=True)
class PruningStep:
    """The shape of a pruned model, ``of``, after the first of its ``removals``: these, in turn."""

    of: Candidate
    removals: tuple[str, ...]
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        *others, last = (REMOVALS[removal] for removal in self.removals)
        return f"{self.of.name}: fewer {' and '.join(filter(None, (', '.join(others), last)))}"


def plan_pruning_steps(candidates: Sequence[Candidate]) -> list[PruningStep]:
    """Return the shapes that pruned torch models had before their last removal.

    Raises:
        CompressError: no model had two removals.
    """
    found = []
    for candidate in candidates:
        if candidate.kind == "model" and not candidate.model.is_onnx:
            shapes = _shapes(candidate.model)
            found += [
                PruningStep(candidate, tuple(removal for removal, _ in shapes[: index + 1]), config)
                for index, (_, config) in enumerate(shapes[:-1])
            ]
    if not found:
        raise CompressError(
            "--pruning-steps takes two or more removals of one 'compress prune' apart, and no torch model here had "
            "them; give such a model with --model, or leave it out"
        )
    return found


def build_pruning_steps(steps: Sequence[PruningStep], scratch: Path) -> list[Candidate]:
    """Write every pruning step into a folder of its own and return what is measured; the same weights every time.

    Raises:
        CompressError: a shape that cannot be built.
    """
    return [_built(one, scratch / f"pruning-step-{number}") for number, one in enumerate(steps)]


def _built(pruning_steps: PruningStep, directory: Path) -> Candidate:
    import torch
    from transformers import AutoConfig

    from compress.models.modeling import PROBLEM_TYPES, auto_class
    from compress.models.saving import describe_architecture, save_model

    source = pruning_steps.of.model
    settings = {**pruning_steps.config}
    try:
        config = AutoConfig.for_model(
            settings.pop("model_type"),
            id2label=dict(enumerate(source.labels)),
            label2id={label: index for index, label in enumerate(source.labels)},
            problem_type=PROBLEM_TYPES[source.task],
            **settings,
        )
        # Two models may have had the same shape: by other weights their pruning steps are told apart.
        torch.manual_seed(crc32(pruning_steps.name.encode()))
        model = auto_class(source.task).from_config(config)
    except Exception as error:  # configs and models refuse what is wrong by many classes of their own
        told = next(iter(str(error).splitlines()), type(error).__name__)
        raise CompressError(
            f"{pruning_steps.name} cannot be built from the manifest of {source.path}: {told}; "
            "leave --pruning-steps out"
        ) from error
    save_model(model, source.load_tokenizer(), directory)
    manifest = Manifest(
        stage="",
        name=pruning_steps.name,
        task=source.task,
        labels=source.labels,
        architecture=describe_architecture(model),
        parents=(parent_entry("pruned", source),),
        files=describe_files(directory),
    )
    return replace(
        pruning_steps.of,
        model=ModelDir(directory, manifest),
        name=pruning_steps.name,
        kind="pruning-step",
        recipe="",
        control="",
        removals=pruning_steps.removals,
        step_of=pruning_steps.of.name,
    )
