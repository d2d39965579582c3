"""A model while it gets smaller: every removal is done, judged, and kept as a directory that can be timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compress.data.tokenization import encode
from compress.models.prunable_units import kept_layers
from compress.pruning.masked_evaluation import Evaluations, JudgingRows
from compress.surgery.unit_masks import Masks, masked_positions
from compress.training.layer_mapping import kept_layer_map

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.data import Example


MASKED_TOLERANCE = 1e-5
COMPARED_ROWS = 256
# What of a config says nothing of the shapes of a model.
NO_SHAPE = frozenset(("id2label", "label2id", "architectures", "auto_map", "transformers_version", "problem_type"))


@dataclass(frozen=True)
class Cut:
    """What one kind of removal left.

    Args:
        removal: ``nothing`` of the whole model, ``vocabulary``, ``layers``, ``heads``, ``neurons``, ``hidden`` or
            ``recovery``, which removes nothing.
        removed: how many units, ``of`` how many there were.
        flops: operations of a row of ``tokens`` tokens; None where they cannot be counted.
        value: the metric on the rows that judge.
        points, low, high: the difference to the whole model, with its 95% interval.
        trained: whether the weights were trained since the model was whole.
        architecture: the shapes, as a manifest has them.
        config: what a model of random weights that is as fast is made from.
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
class Shrinking:
    """A model, its tokenizer, and what was cut so far. ``folder`` holds a directory and the answers of each state.

    The first cut is of nothing: the whole model. ``layer_map`` says which of its layers those that are left learn from.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    rows: JudgingRows
    folder: Path
    cuts: list[Cut] = field(default_factory=list)
    trained: bool = False
    layer_map: str = "uniform"
    reference: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        lengths = [len(ids) for ids in self._tokens()]
        self.median_length = int(np.median(lengths))
        self.reference = self.judge("nothing").predicted()
        self.done("nothing", 0, 0)

    def _tokens(self) -> list[list[int]]:
        return encode(self.tokenizer, self.rows.gold.examples, self.rows.max_length, task=self.rows.task)["input_ids"]

    @property
    def directories(self) -> list[Path]:
        """The directories of the cuts, in turn."""
        return [self.folder / f"{number}-{cut.removal}" for number, cut in enumerate(self.cuts)]

    @property
    def metric_entry(self) -> dict[str, Any]:
        """What a manifest says of the last state's metric."""
        judged = self.rows
        return {
            "name": judged.metric.name,
            "value": self.cuts[-1].value,
            "split": judged.split,
            "rows": len(judged.gold.examples),
        }

    @property
    def whole(self) -> Path:
        """The directory of the whole model as it reads the tokens that are left."""
        places = zip(self.directories, self.cuts, strict=True)
        return [place for place, cut in places if cut.removal in {"nothing", "vocabulary"}][-1]

    def without(self, masks: Masks, directory: Path) -> Path:
        """Write what the model would be without the masked heads and neurons, and return where."""
        from compress.models.saving import save_model

        smaller = deepcopy(self.model)
        slice_units(smaller, masks)
        save_model(reloadable(smaller).cpu(), self.tokenizer, directory)
        return directory

    def judge(self, removal: str) -> Evaluations:
        """Return what evaluates the model as it is now; ``removal`` names its state."""
        return Evaluations(self.model, self.tokenizer, self.rows, self.folder / f"answers-{len(self.cuts)}-{removal}")

    def done(self, removal: str, removed: int, of: int, masked: Masks | None = None) -> None:
        """Write down what the model is after a removal, and keep it; ``masked`` are units that are not cut out yet."""
        from compress.models.flops import count_flops
        from compress.models.saving import describe_architecture, save_model

        kept = reloadable(self.model).cpu().eval()
        judge = self.judge(removal)
        found = judge.against(self.reference, masked)
        tokens = np.ones((1, self.median_length), dtype=np.int64)
        architecture = describe_architecture(kept)
        self.cuts.append(
            Cut(
                removal,
                removed,
                of,
                architecture["parameters"],
                count_flops(kept, {"input_ids": tokens, "attention_mask": tokens.copy()}),
                self.median_length,
                judge.value(masked),
                found.points,
                found.low,
                found.high,
                self.trained,
                architecture,
                {key: value for key, value in kept.config.to_diff_dict().items() if key not in NO_SHAPE},
            )
        )
        save_model(kept, self.tokenizer, self.directories[-1])

    def keep_vocabulary(self, corpus: Iterable[Example]) -> dict[str, Any]:
        """Keep the word pieces of a corpus only; return what went, and how many of the judging rows are read anew."""
        from compress.surgery.remove_vocabulary import cut_vocabulary, fallbacks

        before = self.tokenizer
        self.tokenizer, cut = cut_vocabulary(self.model, before, corpus)
        self.done("vocabulary", cut.pieces_before - cut.pieces_after, cut.pieces_before)
        anew = fallbacks(before, self.tokenizer, self.rows.gold.examples)
        shares = {"text_share": anew.text_share, "word_share": anew.word_share}
        return {**asdict(cut), "fallbacks": {**asdict(anew), **shares}}

    def remove_layers(self, layers: Sequence[int]) -> None:
        """Take out whole layers, by their positions."""
        from compress.models.modeling.families import layers_of
        from compress.surgery.remove_layers import remove_layers

        there, before = len(layers_of(self.model)), kept_layers(self.model)
        remove_layers(self.model, layers)
        self.layer_map = kept_layer_map(before, kept_layers(self.model))
        self.done("layers", len(layers), there)

    def remove_hidden(self, positions: Sequence[int]) -> None:
        """Make the states between layers narrower by some positions."""
        from compress.surgery.remove_hidden import remove_hidden

        there = int(self.model.config.hidden_size)
        remove_hidden(self.model, positions)
        self.done("hidden", len(positions), there)

    def remove_units(self, masks: Masks) -> None:
        """Cut the masked heads and neurons out of the weights, heads before neurons, and check it against masking.

        A model that was trained with all of it masked is judged so.
        """
        masked = self.judge("masked").logits(masks, COMPARED_ROWS)
        for part, rows in masks.items():
            slice_units(self.model, {part: rows})
            later: Masks = {other: left for other, left in masks.items() if part == "heads" and other != part}
            gone = sum(int((row == 0).sum()) for row in rows)
            self.done(part, gone, sum(map(len, rows)), later if self.trained else None)
        check_equal(masked, self.judge("sliced").logits(first=COMPARED_ROWS))


def reloadable(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model, of a class that can be saved and opened again."""
    from compress.models.modeling.pruned import to_pruned
    from compress.models.prunable_units import has_units

    return (to_pruned(model) if has_units(model) else deepcopy(model)).eval()


def slice_units(model: PreTrainedModel, masks: Masks) -> None:
    """Cut the masked heads and neurons out of the weights of a model."""
    from compress.surgery.remove_units import remove_heads, remove_neurons

    for part, rows in masks.items():
        (remove_heads if part == "heads" else remove_neurons)(model, masked_positions(rows))


def check_equal(masked: np.ndarray, sliced: np.ndarray) -> None:
    """Stop where slicing does not compute what masking did."""
    scale = max(1.0, float(np.nanmax(np.abs(masked))))  # a word that is not answered has no logits
    difference = float(np.nanmax(np.abs(masked - sliced)))
    if difference > MASKED_TOLERANCE * scale:
        raise RuntimeError(f"slicing changed the logits by {difference:.2g} against masking; nothing was written")
