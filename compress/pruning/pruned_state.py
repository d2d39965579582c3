"""Pruning state: apply each removal, evaluate it, and save a checkpoint for timing."""

import shutil
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.data.tokenization import encode
from compress.models.flops import count_flops
from compress.models.modeling.families import layers_of
from compress.models.modeling.pruned import to_pruned
from compress.models.prunable_units import has_units, kept_layers
from compress.models.saving import describe_architecture, save_model
from compress.pruning.evaluation import EvaluationRows, MaskedEvaluation
from compress.surgery.remove_hidden import remove_hidden
from compress.surgery.remove_layers import remove_layers
from compress.surgery.remove_units import remove_heads, remove_neurons
from compress.surgery.remove_vocabulary import cut_vocabulary, fallbacks
from compress.surgery.unit_masks import Masks, masked_positions
from compress.training.layer_mapping import kept_layer_map

MASKED_TOLERANCE = 1e-5
COMPARED_ROWS = 256
# Fields of a config that do not describe shapes.
NO_SHAPE = frozenset(("id2label", "label2id", "architectures", "auto_map", "transformers_version", "problem_type"))


@dataclass(frozen=True)
class RemovalStep:
    """A removal, and the model after it.

    Args:
        removal: ``nothing`` of the unpruned model, ``vocabulary``, ``layers``, ``heads``, ``neurons``, ``hidden`` or
            ``recovery``, which removes nothing.
        removed: how many, ``of`` how many there were.
        flops: FLOPs of a row of ``tokens`` tokens; None where they cannot be counted.
        value: the metric on the evaluation rows.
        points, low, high: the difference to the unpruned model, with its 95% interval.
        trained: whether the weights were trained since the model was unpruned.
        architecture: the shapes, as a manifest has them.
        config: the model's config, from which one of random weights and equal speed can be made.
    """

    removal: str
    removed: int
    of: int
    parameters: int
    flops: float | None
    tokens: int
    value: float
    points: float
    low: float
    high: float
    trained: bool
    architecture: dict[str, Any]
    config: dict[str, Any]


@dataclass
class PrunedState:
    """A model, its tokenizer, and its removals so far, of which the first is ``nothing``.

    ``folder`` holds the predictions of each step and its checkpoint, which ``checkpoints`` names by removal.
    ``layer_map`` maps the layers that are kept to those of the unpruned model, for hidden-state losses.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    rows: EvaluationRows
    folder: Path
    steps: list[RemovalStep] = field(default_factory=list)
    checkpoints: dict[str, Path] = field(default_factory=dict)
    trained: bool = False
    layer_map: str = "uniform"
    reference: np.ndarray | None = None

    def __post_init__(self) -> None:
        rows = self.rows
        tokens = encode(self.tokenizer, rows.gold.examples, rows.max_length, task=rows.task)["input_ids"]
        self.median_length = int(np.median([len(ids) for ids in tokens]))
        unpruned = self.evaluation("nothing")
        unpruned.check()
        self.reference = unpruned.predicted()
        self.record("nothing", 0, 0)

    @property
    def teacher(self) -> Path:
        """The checkpoint of the unpruned model that reads the remaining subword tokens."""
        return self.checkpoints.get("vocabulary", self.checkpoints["nothing"])

    def evaluation(self, name: str) -> MaskedEvaluation:
        """Return an evaluation of the present model; ``name`` names the cache of its predictions."""
        folder = self.folder / f"answers-{len(self.steps)}-{name}"
        return MaskedEvaluation(self.model, self.tokenizer, self.rows, folder, self.reference)

    def record(self, removal: str, removed: int, of: int, masks: Masks | None = None) -> None:
        """Evaluate and save the model after a removal; ``masks`` are applied in the evaluation."""
        kept = reloadable(self.model).cpu()
        effect = self.evaluation(removal).effect(masks)
        tokens = np.ones((1, self.median_length), dtype=np.int64)
        architecture = describe_architecture(kept)
        self.steps.append(
            RemovalStep(
                removal,
                removed,
                of,
                parameters=architecture["parameters"],
                flops=count_flops(kept, {"input_ids": tokens, "attention_mask": tokens.copy()}),
                tokens=self.median_length,
                trained=self.trained,
                architecture=architecture,
                config={key: value for key, value in kept.config.to_diff_dict().items() if key not in NO_SHAPE},
                **effect,
            )
        )
        self.checkpoints[removal] = self.folder / f"{len(self.steps) - 1}-{removal}"
        shutil.rmtree(self.checkpoints[removal], ignore_errors=True)  # of an earlier start
        save_model(kept, self.tokenizer, self.checkpoints[removal])

    def save_without(self, masks: Masks, directory: Path) -> Path:
        """Save a copy of the model without masked heads and neurons, and return the directory."""
        smaller = deepcopy(self.model)
        remove_masked(smaller, masks)
        save_model(reloadable(smaller).cpu(), self.tokenizer, directory)
        return directory

    def remove_vocabulary(self, corpus: Iterable[Example]) -> dict[str, Any]:
        """Keep the subword tokens of a corpus; return what was removed, and how many words are tokenized anew."""
        before = self.tokenizer
        self.tokenizer, cut = cut_vocabulary(self.model, before, corpus)
        self.record("vocabulary", cut.pieces_before - cut.pieces_after, cut.pieces_before)
        return {**asdict(cut), "fallbacks": fallbacks(before, self.tokenizer, self.rows.gold.examples)}

    def remove_layers(self, layers: Sequence[int]) -> None:
        """Remove whole layers by their positions."""
        there, before = len(layers_of(self.model)), kept_layers(self.model)
        remove_layers(self.model, layers)
        self.layer_map = kept_layer_map(before, kept_layers(self.model))
        self.record("layers", len(layers), there)

    def remove_hidden(self, positions: Sequence[int]) -> None:
        """Remove positions of the hidden size."""
        there = int(self.model.config.hidden_size)
        remove_hidden(self.model, positions)
        self.record("hidden", len(positions), there)

    def remove_units(self, masks: Masks) -> None:
        """Remove masked heads, then neurons, from the weights, and compare the logits with those of masking.

        A model that was trained with all of them masked is evaluated with all of them masked.
        """
        expected = self.evaluation("masked").logits(masks, COMPARED_ROWS)
        for part, rows in masks.items():
            remove_masked(self.model, {part: rows})
            later: Masks = {other: left for other, left in masks.items() if part == "heads" and other != part}
            masked = sum(int((row == 0).sum()) for row in rows)
            self.record(part, masked, sum(map(len, rows)), later if self.trained else None)
        check_equal(expected, self.evaluation("sliced").logits(first=COMPARED_ROWS))


def reloadable(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model, of a class that can be saved and opened again."""
    copy = to_pruned(model) if has_units(model) else deepcopy(model)
    copy.eval()
    return copy


def remove_masked(model: PreTrainedModel, masks: Masks) -> None:
    """Remove masked heads and neurons from the weights of a model."""
    for part, rows in masks.items():
        (remove_heads if part == "heads" else remove_neurons)(model, masked_positions(rows))


def check_equal(masked: np.ndarray, sliced: np.ndarray) -> None:
    """Raise an error where removal does not compute what masking computed."""
    scale = max(1.0, float(np.nanmax(np.abs(masked))))  # words without predictions have NaN
    difference = float(np.nanmax(np.abs(masked - sliced)))
    if difference > MASKED_TOLERANCE * scale:
        raise RuntimeError(f"slicing changed the logits by {difference:.2g} against masking; nothing was written")
