"""The rows of a pruning by role, and models on them: with heads or neurons masked, and after each removal."""

import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example, LabelledData, check_roles, row_key
from compress.data.tokenization import maximum_length
from compress.data.windows import Windows, encode_rows
from compress.evaluation.metrics import Difference, Metric, interval, paired_difference, score
from compress.inference.batching import exact_batches, logits_of
from compress.inference.predict import check_label_meaning
from compress.inference.torch_run import TorchRun
from compress.labelling.label_dir import LabelDir
from compress.models.batch import Batch
from compress.models.components import Part, count_flops, has_units, kept_layers
from compress.models.manifest import cached_json
from compress.models.model_dir import Model
from compress.models.modeling.families import layers_of
from compress.models.modeling.pruned import to_pruned
from compress.models.saving import describe_architecture, save_model
from compress.pruning.scoring import check_rows, scoring_batches
from compress.surgery.remove import remove_heads, remove_hidden, remove_layers, remove_neurons
from compress.surgery.remove_vocabulary import cut_vocabulary, fallbacks
from compress.surgery.unit_masks import Masks, mask_key, masked, masked_positions
from compress.tasks import HEAD_KEYS, Task
from compress.training.losses._common import kept_layer_map
from compress.training.training_data import Gold, LabelledPool, Selection, agreement_rows

ON_TRAIN = "train (the scoring rows)"
MASKED_TOLERANCE = 1e-5
COMPARED_ROWS = 256
# Fields of a config that do not describe shapes.
NO_SHAPE = frozenset((*HEAD_KEYS, "architectures", "auto_map", "transformers_version"))


@dataclass(frozen=True)
class EvaluationRows:
    """Rows with gold labels, how a model reads them, and the metric of its predictions."""

    gold: Gold
    metric: Metric
    classes: int
    max_length: int
    task: Task
    split: str = "validation"
    windows: Windows | None = None


@dataclass(frozen=True)
class PruningRows:
    """``sample`` scores heads and layers, ``train`` and ``pool`` train the recovery, ``validation`` selects.

    ``evaluation`` are the rows that pruned models are evaluated on: without validation rows the scoring rows.
    ``described`` are the entries of a manifest; those of the pool get ``left_out`` too.
    """

    sample: Gold
    train: Gold
    validation: Gold
    pool: LabelledPool | None
    evaluation: EvaluationRows
    described: list[dict[str, Any]]
    left_out: dict[str, Any]

    def batches(self, tokenizer: PreTrainedTokenizerFast, device: str) -> list[Batch]:
        labels, rows = self.sample.labels, self.evaluation
        limits: dict[str, Any] = {"max_length": rows.max_length, "task": rows.task, "windows": rows.windows}
        return list(scoring_batches(self.sample.examples, labels, tokenizer, **limits, device=device))

    def selection(self, task: Task) -> Selection | None:
        """Return the rows that select the checkpoint: validation rows, or a part of the pool by agreement."""
        if self.validation.examples:
            return Selection(list(self.validation.rows()), "validation", self.evaluation.metric.name)
        return None if self.pool is None else agreement_rows(self.pool, task)


def split_rows(
    model: Model, data: LabelledData, *, examples: int, seed: int, labels: Sequence[LabelDir] = ()
) -> PruningRows:
    """Check labelled rows against a model and each other, and draw the rows that score.

    Args:
        examples: how many rows of train to draw.
        labels: text for the recovery.

    Raises:
        CompressError: no rows of train, labels that the model does not know, or rows in two roles.
    """

    def encoded(rows: Sequence[Example], role: str) -> Gold:
        return Gold(rows, model.task.gold(rows, model.labels, role))

    check_rows(data.train)
    encoded(data.train, "train")  # before rows are left out: errors count the rows as they were given
    validation = encoded(data.validation, "validation")
    pool = LabelledPool(tuple(labels)) if labels else None
    given: dict[str, Any] = {"train": data.train, "unlabeled": pool, "validation": data.validation}
    checked = check_roles({role: rows for role, rows in given.items() if rows}, data.overlap)
    sets: dict[str, Any] = dict(checked.sets)
    train: Sequence[Example] = sets["train"]
    sample = encoded(random.Random(seed).sample(list(train), min(examples, len(train))), "sample")
    return PruningRows(
        sample,
        encoded(train, "train"),
        validation,
        sets["unlabeled"].without(frozenset(map(row_key, train))) if labels else None,
        EvaluationRows(
            validation if data.validation else sample,
            model.task.metric(data.metric, model.labels),
            len(model.labels),
            maximum_length(model.tokenizer, model.config),
            model.task,
            "validation" if data.validation else ON_TRAIN,
            model.windows,
        ),
        checked.described(),
        checked.left_out.get("unlabeled", {}),
    )


@dataclass(frozen=True)
class MaskedEvaluation:
    """Evaluations of one model on fixed rows.

    ``folder`` caches predictions ``[N]`` (of words, for a tagger). ``reference`` are the predictions that differences
    are against; by default those of the model without masks.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    rows: EvaluationRows
    folder: Path
    reference: np.ndarray | None = None

    def predicted(self, masks: Masks | None = None) -> np.ndarray:
        """Return the predictions of the model with these heads and neurons masked."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{mask_key(masks or {})}.json"
        metric, sentences = self._compared["metric"], self._compared["sentences"]
        judge = self.rows.task.judged
        return np.array(cached_json(path, lambda: judge(self.logits(masks), metric, sentences).tolist()))

    def check(self) -> None:
        """Refuse rows whose labels mean something else than the classes of the model without masks."""
        names = [*(self.model.config.id2label or {}).values()]
        check_label_meaning(self.predicted(), self._labels, names, self.rows.split)

    def logits(self, masks: Masks | None = None, first: int | None = None) -> np.ndarray:
        """Return logits ``[N, C]``, not cached, of all rows or the first ones."""
        rows = self.rows
        with masked(self.model, masks or {}):
            return logits_of(
                rows.gold.examples[:first],
                exact_batches(TorchRun(self.model), self.model.config.to_dict(), "float32"),
                self.tokenizer,
                max_length=rows.max_length,
                by_word=rows.task.by_word,
                windows=rows.windows,
            )

    def value(self, masks: Masks | None = None) -> float:
        return score(self.predicted(masks), self._labels, **self._compared)

    def interval(self) -> tuple[float, float]:
        """Return the 95% interval of the metric without masks."""
        return interval(self.predicted(), self._labels, **self._compared)

    def difference(self, masks: Masks | None = None) -> Difference:
        reference = self.predicted() if self.reference is None else self.reference
        return paired_difference(self.predicted(masks), reference, self._labels, **self._compared)

    def effect(self, masks: Masks | None = None) -> dict[str, Any]:
        """Return the metric as ``value`` and the fields of the difference, except McNemar's p."""
        change = self.difference(masks)
        return {"value": self.value(masks), "points": change.points, "low": change.low, "high": change.high}

    @cached_property
    def _labels(self) -> np.ndarray:
        return self.rows.task.column(self.rows.gold.labels)

    @cached_property
    def _compared(self) -> dict[str, Any]:
        sentences = self.rows.task.clusters(self.rows.gold.examples, self.rows.metric)
        return {"metric": self.rows.metric, "classes": self.rows.classes, "sentences": sentences}


@dataclass
class PrunedState:
    """A model, its tokenizer, and its removals so far, of which the first is ``nothing``.

    ``folder`` holds the predictions of each step and its checkpoint, which ``checkpoints`` names by removal. ``steps``
    has the figures after each removal, as :meth:`record` describes them.
    ``layer_map`` maps the layers that are kept to those of the unpruned model, for hidden-state losses.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    rows: EvaluationRows
    folder: Path
    steps: list[Mapping[str, Any]] = field(default_factory=list)
    checkpoints: dict[str, Path] = field(default_factory=dict)
    trained: bool = False
    layer_map: str = "uniform"
    reference: np.ndarray | None = None

    def __post_init__(self) -> None:
        rows, examples = self.rows, self.rows.gold.examples
        tokens, _ = encode_rows(self.tokenizer, examples, rows.max_length, rows.windows, by_word=rows.task.by_word)
        self.median_length = int(np.median([len(ids) for ids in tokens["input_ids"]]))
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
        """Evaluate and save the model after a removal; ``masks`` are applied in the evaluation.

        Args:
            removal: ``nothing`` of the unpruned model, ``vocabulary``, ``layers``, ``heads``, ``neurons``, ``hidden``
                or ``recovery``, which removes nothing.
            removed: how many, ``of`` how many there were.

        A step also has ``flops`` of a row of ``tokens`` tokens (None where they cannot be counted), ``trained``
        (whether the weights were trained since the model was unpruned), the shapes as ``architecture`` of a manifest,
        the ``config`` that a model of random weights and equal speed can be made from, and the fields of
        :meth:`MaskedEvaluation.effect`.
        """
        kept = reloadable(self.model).cpu()
        effect = self.evaluation(removal).effect(masks)
        tokens = np.ones((1, self.median_length), dtype=np.int64)
        architecture = describe_architecture(kept)
        step = {
            "removal": removal,
            "removed": removed,
            "of": of,
            "parameters": architecture["parameters"],
            "flops": count_flops(kept, {"input_ids": tokens, "attention_mask": tokens.copy()}),
            "tokens": self.median_length,
            **effect,
            "trained": self.trained,
            "architecture": architecture,
            "config": {key: value for key, value in kept.config.to_diff_dict().items() if key not in NO_SHAPE},
        }
        self.checkpoints[removal] = self.folder / f"{len(self.steps)}-{removal}"
        self.steps.append(step)
        shutil.rmtree(self.checkpoints[removal], ignore_errors=True)  # of an earlier start
        save_model(kept, self.tokenizer, self.checkpoints[removal])

    def save_without(self, masks: Masks, directory: Path) -> Path:
        """Save a copy of the model without masked heads and neurons, and return the directory."""
        smaller = deepcopy(self.model)
        for part, rows in masks.items():
            remove_masked(smaller, part, rows)
        save_model(reloadable(smaller).cpu(), self.tokenizer, directory)
        return directory

    def remove_vocabulary(self, corpus: Iterable[Example]) -> dict[str, Any]:
        """Keep the subword tokens of a corpus; return what was removed, and how many words are tokenized anew."""
        before = self.tokenizer
        self.tokenizer, cut = cut_vocabulary(self.model, before, corpus)
        self.record("vocabulary", cut.pieces_before - cut.pieces_after, cut.pieces_before)
        return {**asdict(cut), "fallbacks": fallbacks(before, self.tokenizer, self.rows.gold.examples)}

    def remove_layers(self, layers: Sequence[int]) -> None:
        there, before = len(layers_of(self.model)), kept_layers(self.model)
        remove_layers(self.model, layers)
        self.layer_map = kept_layer_map(before, kept_layers(self.model))
        self.record("layers", len(layers), there)

    def remove_hidden(self, positions: Sequence[int]) -> None:
        there = int(self.model.config.hidden_size)
        remove_hidden(self.model, positions)
        self.record("hidden", len(positions), there)

    def remove_units(self, masks: Masks) -> None:
        """Remove masked heads, then neurons, from the weights, and compare the logits with those of masking.

        A model that was trained with all of them masked is evaluated with all of them masked.
        """
        expected = self.evaluation("masked").logits(masks, COMPARED_ROWS)
        for part, rows in masks.items():
            remove_masked(self.model, part, rows)
            later: Masks = {other: left for other, left in masks.items() if part == "heads" and other != part}
            gone = sum(int((row == 0).sum()) for row in rows)
            self.record(part, gone, sum(map(len, rows)), later if self.trained else None)
        difference = np.abs(expected - self.evaluation("sliced").logits(first=COMPARED_ROWS))
        if np.nanmax(difference) > MASKED_TOLERANCE * max(1.0, np.nanmax(np.abs(expected))):  # NaN: no prediction
            raise RuntimeError(
                f"slicing changed the logits by {np.nanmax(difference):.2g} against masking; nothing was written"
            )


def reloadable(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model, of a class that can be saved and opened again."""
    copy = to_pruned(model) if has_units(model) else deepcopy(model)
    copy.eval()
    return copy


def remove_masked(model: PreTrainedModel, part: Part, rows: Sequence[Tensor]) -> None:
    (remove_heads if part == "heads" else remove_neurons)(model, masked_positions(rows))
