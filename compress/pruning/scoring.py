"""Shared code of the criteria: the task loss of a batch, cached evaluations, and scores as one tensor.

Shapes: B batch, L layers, U units (heads or neurons) of a layer, N examples.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.models.batch import Batch
from compress.surgery.unit_masks import Masks, mask_key, masked

Labels = Literal["gold", "own"]
Measure = Literal["loss", "metric"]


def target_labels(batch: Batch, logits: Tensor, labels: Labels) -> Tensor:
    """Return the gold labels of a batch, or (``own``) what the model predicts itself, which needs none.

    The divergence to the model's own *probabilities* would have a gradient of zero, so that its largest class is taken.

    Raises:
        CompressError: no gold labels, or own predictions of a regression, whose loss has a gradient of zero too.
    """
    if labels == "own":
        if logits.shape[-1] == 1:
            raise CompressError("labels = 'own' needs classes, and this model is a regression; give gold labels")
        return logits.detach().argmax(dim=-1)
    if labels != "gold":
        raise CompressError(f"labels = {labels!r} is not known; use 'gold' or 'own'")
    if batch.labels is None:
        raise CompressError("the criterion reads labels, and the rows have none; give labels, or labels='own'")
    return batch.labels


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the task loss of every answer: cross-entropy, or the squared error of a regression."""
    if logits.shape[-1] == 1:
        return (logits.float().squeeze(-1) - labels) ** 2
    return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")


def as_scores(by_layer: Sequence[Tensor], masks: Sequence[Tensor] | None) -> Tensor:
    """Return ``[L, U]`` float32, U being the largest number of units of a layer; missing and masked ones score zero."""
    scores = torch.zeros(len(by_layer), max(map(len, by_layer)))
    for layer, values in enumerate(by_layer):
        scores[layer, : len(values)] = values.float().cpu()
        if masks is not None:
            scores[layer, : len(values)] *= torch.as_tensor(masks[layer]).float()
    return scores


class Values:
    """How good a model is with some units masked, by what is masked; kept in a file, where one is given.

    A criterion of many evaluations that was stopped goes on behind the last of them. The file is of one model, one set
    of rows and one measure: whoever gives it sees to that.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.known = path, dict[str, float]()
        if path is not None and path.is_file():
            whole = path.read_text(encoding="utf-8").rpartition("\n")[0]  # a line that was being written is not
            self.known = dict(json.loads(line) for line in whole.splitlines())
            path.write_text(whole and whole + "\n", encoding="utf-8")

    def of(self, model: PreTrainedModel, masks: Masks, batches: Iterable[Batch], measure: Measure) -> float:
        """Return the value of a model with heads and neurons masked, evaluated if it is not known."""
        key = mask_key(masks)
        if key not in self.known:
            with masked(model, masks):
                self.known[key] = value_of(model, batches, measure)
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]


@torch.no_grad()
def value_of(model: PreTrainedModel, batches: Iterable[Batch], measure: Measure) -> float:
    """Return how good a model is on batches: minus its mean loss, or (``metric``) the share it gets right.

    A regression has minus its mean squared error as its metric too.
    """
    if measure not in {"loss", "metric"}:
        raise CompressError(f"measure = {measure!r} is not known; use 'loss' or 'metric'")
    total, answers = 0.0, 0
    for batch in batches:
        logits = batch.answers(model(**batch.inputs()).logits)
        labels = target_labels(batch, logits, "gold")
        if measure == "loss" or logits.shape[-1] == 1:
            total -= float(losses_of(logits, labels).sum())
        else:
            total += float((logits.argmax(dim=-1) == labels).sum())
        answers += len(labels)
    return total / answers
