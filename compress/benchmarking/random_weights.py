"""Models with random weights, which are as fast as trained ones: reference models and pruning steps.

A *reference model* is a published architecture, for scale: published speed-ups are against BERT-base or BERT-large. It
has the teacher's vocabulary and labels, so that it reads the same rows.

A *pruning step* is an intermediate shape of a pruned model, to measure the effect of each removal. ``compress prune``
notes the config after each removal in the manifest; each shape but the last, which is the pruned model itself, is built
here. It reads rows as the pruned model does, whose tokenizer it has (the vocabulary is cut before all else).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from compress.benchmarking.candidates import Candidate, new_candidate
from compress.data.tokenization import maximum_length
from compress.errors import CompressError
from compress.models.manifest import Manifest, describe_files
from compress.models.model_dir import REMOVALS, ModelDir, parent_entry, removal_shapes
from compress.models.modeling import PROBLEM_TYPES, auto_class
from compress.progress import logger
from compress.recipes.benchmark_settings import REFERENCE_MODELS

POSITIONS = 512


def build_reference_models(names: Sequence[str], candidates: Sequence[Candidate], scratch: Path) -> list[Candidate]:
    """Write each reference model into a folder of its own and return what is measured; the same weights every time."""
    found = []
    for name in dict.fromkeys(name.replace("_", "-") for name in names):
        logger.info("%s: building", name)
        found.append(new_candidate(name, "reference-model", candidates, scratch))
        build_reference_model(name, found[-1].model.path, candidates[0].model)
    return found


def build_reference_model(name: str, directory: Path, teacher: ModelDir) -> None:
    """Write a reference model with the tokenizer and labels of a teacher; the same weights every time."""
    from compress.models.saving import save_model

    tokenizer = teacher.load_tokenizer()
    model_type, shape = REFERENCE_MODELS[name]
    config = {
        "model_type": model_type,
        "vocab_size": max(len(tokenizer), int(teacher.config.get("vocab_size", 0))),
        "max_position_embeddings": max(POSITIONS, maximum_length(tokenizer, teacher.config)),
        "pad_token_id": tokenizer.pad_token_id,
        **shape,
    }
    save_model(_random_model(config, teacher, seed=0), tokenizer, directory)


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
            shapes = removal_shapes(candidate.model)
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
    return [_built(step, scratch / f"pruning-step-{number}") for number, step in enumerate(steps)]


def _built(step: PruningStep, directory: Path) -> Candidate:
    from compress.models.saving import describe_architecture, save_model

    source = step.of.model
    try:
        # Two models may have had the same shape: their pruning steps differ by their weights.
        model = _random_model(step.config, source, seed=crc32(step.name.encode()))
    except Exception as error:  # configs and models refuse what is wrong by many classes of their own
        told = next(iter(str(error).splitlines()), type(error).__name__)
        raise CompressError(
            f"{step.name} cannot be built from the manifest of {source.path}: {told}; leave --pruning-steps out"
        ) from error
    save_model(model, source.load_tokenizer(), directory)
    manifest = Manifest(
        stage="",
        name=step.name,
        task=source.task,
        labels=source.labels,
        architecture=describe_architecture(model),
        parents=(parent_entry("pruned", source),),
        files=describe_files(directory),
    )
    return replace(
        step.of,
        model=ModelDir(directory, manifest),
        name=step.name,
        kind="pruning-step",
        recipe="",
        control="",
        removals=step.removals,
        step_of=step.of.name,
    )


def _random_model(config: Mapping[str, Any], labels_from: ModelDir, seed: int) -> Any:
    """Return a classifier of the shape of a config, with the task and labels of another model."""
    import torch
    from transformers import AutoConfig

    settings = {
        **config,
        "id2label": dict(enumerate(labels_from.labels)),
        "label2id": {label: index for index, label in enumerate(labels_from.labels)},
        "problem_type": PROBLEM_TYPES[labels_from.task],
    }
    made = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(seed)
    return auto_class(labels_from.task).from_config(made)
