"""Importance of heads, neurons, layers and hidden positions, and what criteria share: batches, losses, evaluations.

Shapes: B batch, L layers, U units (heads or neurons) of a layer, D hidden size, N examples.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress import plugins
from compress.data import Example
from compress.data.tokenization import maximum_length, pad
from compress.data.windows import Windows, encode_rows, windows_of
from compress.errors import refuse
from compress.models.batch import Batch
from compress.models.components import fixed_weights, kept_layers
from compress.models.manifest import cached_json
from compress.progress import Advance
from compress.surgery.remove import members, removable_layers, skipped
from compress.surgery.unit_masks import Masks, mask_key, masked, normalised
from compress.tasks import Task, of_network

Batches = Iterable[Batch]
LayerMasks = Sequence[Tensor]  # [U] a layer: 1 for a kept unit, 0 for a masked one
Labels = Literal["gold", "own"]
Measure = Literal["loss", "metric"]
SCORING_BATCH_ROWS = 32


def head_importance(
    model: PreTrainedModel,
    examples: Sequence[tuple[str, int | str | None]],
    *,
    tokenizer: PreTrainedTokenizerFast,
    criterion: str = "gradient",
    normalise: bool = False,
    max_length: int | None = None,
    **options: Any,
) -> Tensor:
    """Return importance scores ``[L, H]`` of every head of a model.

    Args:
        examples: ``(text, label)`` pairs; a label is a class index or name, or None in all of them for a criterion that
            reads none: gradient and taylor with ``labels="own"``, magnitude, confidence, random.
        criterion: a plug-in of ``compress list criteria``; ``options`` are its own.
        normalise: divide each layer's scores by their L2 norm.
        max_length: tokens of a text that are read; None for as many as the model can.

    Raises:
        CompressError: a model, criterion, option or label that does not fit, or no examples.
    """
    check_rows(examples)
    plugin, task = plugins.find("criteria", criterion), of_network(model)
    faults = plugin.check(options)
    refuse(
        (
            task.by_word,
            "head_importance scores classifiers of whole texts, and this model tags words; use 'compress heads'",
        ),
        (faults, "; ".join(faults)),
    )
    id2label: Any = model.config.id2label
    names = [str(id2label[index]) for index in sorted(id2label)]
    rows = [Example(text, None, None if label is None else str(label)) for text, label in examples]
    gold = task.gold(rows, names, "examples") if any(row.label is not None for row in rows) else None
    most = maximum_length(tokenizer, model.config.to_dict())
    limit = min(max_length or most, most)
    windows = windows_of(model.config.to_dict(), "this model")
    device = str(model.device)
    batches = scoring_batches(rows, gold, tokenizer, max_length=limit, task=task, device=device, windows=windows)
    scores: Tensor = plugin.function(model, batches, **options)
    return normalised(scores) if normalise else scores


def check_rows(train: Sequence[object]) -> None:
    refuse((not train, "there are no rows to score the heads on; give labelled rows with --train FILE"))


def scoring_batches(
    examples: Sequence[Example],
    gold: Sequence[int | float | list[int]] | None,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    task: Task,
    device: str,
    windows: Windows | None = None,
) -> Iterator[Batch]:
    """Yield batches of rows of similar length, labelled where ``gold`` is given; for a tagger by word.

    Of a document that is read by windows the first one scores.
    """
    tokens, _ = encode_rows(tokenizer, examples, max_length, windows, most=1, by_word=task.by_word)
    order = sorted(range(len(examples)), key=lambda row: len(tokens["input_ids"][row]))
    for start in range(0, len(order), SCORING_BATCH_ROWS):
        chosen = order[start : start + SCORING_BATCH_ROWS]
        arrays = pad([{k: v[row] for k, v in tokens.items()} for row in chosen], tokenizer.pad_token_id or 0)
        labels: list[Any] = [gold[row] for row in chosen] if gold is not None else []
        if task.by_word:
            arrays["words"], starts = arrays["words"] > 0, arrays["words"]
            labels = [labels[row][starts[row, token] - 1] for row, token in zip(*np.nonzero(starts), strict=True)]
        tensors: dict[str, Any] = {key: torch.from_numpy(values).to(device) for key, values in arrays.items()}
        yield Batch(**tensors, labels=torch.tensor(labels, device=device) if labels else None, task=task)


def losses_of(batch: Batch, logits: Tensor, labels: Labels = "gold") -> Tensor:
    """Return the task's loss of every answer with its label, ``[N]``.

    Args:
        labels: ``gold``, or ``own``: the classes that the model predicts itself. The divergence to the model's own
            *probabilities* would have a gradient of zero.

    Raises:
        CompressError: no gold labels, or own predictions of a regression, whose loss has a gradient of zero too.
    """
    refuse(
        (labels not in get_args(Labels), f"labels = {labels!r} is not known; use 'gold' or 'own'"),
        (
            labels == "own" and not batch.task.has_classes,
            "labels = 'own' needs classes, and this model is a regression; give gold labels",
        ),
        (
            labels == "gold" and batch.labels is None,
            "the criterion reads labels, and the rows have none; give labels, or labels='own'",
        ),
    )
    targets = batch.task.own_labels(logits) if batch.labels is None or labels == "own" else batch.labels
    return batch.task.losses(logits, targets)


def loss_gradients(
    model: PreTrainedModel, batches: Batches, inputs: Callable[[int], Sequence[Tensor]], labels: Labels = "gold"
) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """Yield the number of rows of each batch, and the gradients of its summed loss by ``inputs`` of so many rows."""
    for batch in batches:
        rows = len(batch.input_ids)
        by = inputs(rows)
        loss = losses_of(batch, batch.answers(model(**batch.inputs()).logits), labels).sum()
        yield rows, torch.autograd.grad(loss, by)


def as_scores(by_layer: Sequence[Tensor], masks: LayerMasks | None) -> Tensor:
    """Return ``[L, U]`` float32, U being the largest number of units of a layer; missing and masked ones score zero."""
    scores = pad_sequence([values.float().cpu() for values in by_layer], batch_first=True)
    if masks is not None:
        scores *= pad_sequence([torch.as_tensor(mask).float() for mask in masks], batch_first=True)
    return scores


class Values:
    """Values of a model by the units that are masked, kept in a folder where one is given.

    A criterion of many evaluations that was stopped resumes after the last of them. A folder is for one model, one set
    of rows and one measure.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.known = folder, dict[str, float]()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def of(self, model: PreTrainedModel, masks: Masks, batches: Batches, measure: Measure) -> float:
        def value() -> float:
            with masked(model, masks):
                return value_of(model, batches, measure)

        key = mask_key(masks)
        if key not in self.known:
            self.known[key] = value() if self.folder is None else cached_json(self.folder / f"{key}.json", value)
        return self.known[key]


@torch.no_grad()
def value_of(model: PreTrainedModel, batches: Batches, measure: Measure) -> float:
    """Return the value of a model on batches: minus its mean loss, or (``metric``) the share of right predictions.

    A regression has minus its mean squared error as its metric too.
    """
    refuse((measure not in get_args(Measure), f"measure = {measure!r} is not known; use 'loss' or 'metric'"))
    total, answers = 0.0, 0
    for batch in batches:
        logits = batch.answers(model(**batch.inputs()).logits)
        losses = losses_of(batch, logits)
        is_loss = measure == "loss" or not batch.task.has_classes
        right: Any = batch.task.own_labels(logits) == batch.labels
        total += float(-losses.sum() if is_loss else right.view(len(losses), -1).all(dim=1).sum())
        answers += len(losses)
    return total / answers


def choose_removed_layers(
    model: PreTrainedModel, batches: Batches, count: int, advance: Advance = lambda steps: None
) -> list[dict[str, Any]]:
    """Return the layers to remove, in order: each is the one without which the mean loss on the batches is lowest.

    ``layer`` is its position in this model, ``number`` that before any pruning, and ``loss`` the mean loss without it
    and those removed before it.

    Greedy removal after Sajjad et al. 2023, "On the Effect of Dropping Layers of Pre-trained Transformer Models"
    (arXiv:2004.03844), who compare positions; here every layer is tried, as Peer et al. 2022, "Greedy-layer pruning:
    Speeding up transformer models for natural language processing" (arXiv:2105.14839), do, but without training in
    between. Of several equally good layers the first is removed.

    Args:
        batches: with gold labels; they are read about ``count`` times the number of layers.

    Raises:
        CompressError: more layers than can be removed.
    """
    candidates, numbers, rows = removable_layers(model), kept_layers(model), list(batches)
    most = min(len(candidates), len(numbers) - 1)
    refuse(
        (
            not 1 <= count <= most,
            f"{count} of {len(numbers)} layers cannot be removed; give a number from 1 to {most}",
        )
    )
    gone: dict[int, float] = {}
    with fixed_weights(model):
        for _ in range(count):
            losses = {}
            for layer in (layer for layer in candidates if layer not in gone):
                with skipped(model, [*gone, layer]):
                    losses[layer] = -value_of(model, rows, "loss")
            best = min(losses, key=losses.__getitem__)
            gone[best] = losses[best]
            advance(1)
    return [{"layer": layer, "number": numbers[layer], "loss": loss} for layer, loss in gone.items()]


def hidden_importance(model: PreTrainedModel, batches: Batches) -> Tensor:
    """Return ``[D]``: the first-order change of the loss if all weights of a position are set to zero.

    That is ``|sum w dL/dw|`` over all weights of the position in all layers, of every batch by itself, and the mean of
    that over the rows (Molchanov et al. 2019, "Importance Estimation for Neural Network Pruning", arXiv:1906.10771,
    equation 7, for groups of weights; Ma et al. 2023, "LLM-Pruner", arXiv:2305.11627, section 3.2, for coupled ones).
    On the rows that a model was trained on, the gradient of the mean over all of them is nearly zero.
    """
    parts = [share for member in members(model) for share in member.shares()]
    weights = list({id(weight): weight for _, weight, _ in parts}.values())
    width, rows = int(model.config.hidden_size), 0
    total = torch.zeros(width, device=weights[0].device)
    with fixed_weights(model, learning=True), torch.enable_grad():
        for count, gradients in loss_gradients(model, batches, lambda _: weights):
            products = {id(w): w.detach() * gradient for w, gradient in zip(weights, gradients, strict=True)}
            by_position = [products[id(w)].movedim(dim, 0).reshape(width, -1).sum(dim=1) for _, w, dim in parts]
            total += torch.stack(by_position).sum(dim=0).abs()
            rows += count
    return (total / rows).float().cpu()
