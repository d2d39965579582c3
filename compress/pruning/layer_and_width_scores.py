"""Score whole layers and positions of the hidden size, and choose which to remove."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.models.frozen_parameters import fixed_weights
from compress.models.prunable_units import kept_layers
from compress.progress import Advance
from compress.pruning.scoring import Batches, losses_of, target_labels, value_of
from compress.surgery.remove_hidden import members
from compress.surgery.remove_layers import removable_layers, skipped


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
    if not 1 <= count <= most:
        raise CompressError(f"{count} of {len(numbers)} layers cannot be removed; give a number from 1 to {most}")
    steps: list[dict[str, Any]] = []
    with fixed_weights(model):
        for _ in range(count):
            gone = [step["layer"] for step in steps]
            losses = {}
            for layer in candidates:
                if layer not in gone:
                    with skipped(model, [*gone, layer]):
                        losses[layer] = -value_of(model, rows, "loss")
            best = min(losses, key=losses.__getitem__)
            steps.append({"layer": best, "number": numbers[best], "loss": losses[best]})
            advance(1)
    return steps


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
        for batch in batches:
            logits = batch.answers(model(**batch.inputs()).logits)
            loss = losses_of(logits, target_labels(batch, logits, "gold")).sum()
            gradients = torch.autograd.grad(loss, weights)
            products = {id(w): w.detach() * gradient for w, gradient in zip(weights, gradients, strict=True)}
            by_position = [products[id(w)].movedim(dim, 0).reshape(width, -1).sum(dim=1) for _, w, dim in parts]
            total += torch.stack(by_position).sum(dim=0).abs()
            rows += len(batch.input_ids)
    return (total / rows).float().cpu()
