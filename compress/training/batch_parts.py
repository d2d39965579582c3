"""Run the rows of a batch in parts: of one length where padding changes logits, of like length where it costs time.

What comes out is joined again: the losses read the same rows in the same batch. T tokens of the batch, t of a part.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.inference.padding import padding_changes
from compress.models.frozen_parameters import fixed_weights
from compress.models.modeling import input_names

Inputs = dict[str, Tensor]
# Tokens of a step that a further part costs on a CPU, for each parameter over those of linear layers. A part gives
# gradients to all parameters, a token is multiplied by the linear layers. Measured were 9 to 27 in float32 for one to
# twelve layers of width 128 to 768 and vocabularies of 30,000 to 250,000, and 40 and 72 for six layers of width 48; in
# bfloat16 a token takes half as long.
PART_TOKENS = 40


def tokens_of_a_part(model: nn.Module) -> float:
    """Return how many tokens of a training step cost as much on a CPU as running a batch in one part more."""
    linear = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return PART_TOKENS * sum(parameter.numel() for parameter in model.parameters()) / max(linear, 1)


def reads_padding(model: PreTrainedModel, inputs: Inputs) -> bool:
    """Tell by a trial in float32 whether the logits of the shortest row of a batch depend on its padding."""
    forward, names = type(model).forward, input_names(model)  # mixed precision replaces the model's own

    def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.from_numpy(values).to(model.device) for name, values in arrays.items() if name in names}
        logits: np.ndarray = forward(model, **tensors).logits.cpu().numpy()
        return logits

    with torch.no_grad(), torch.autocast(model.device.type, enabled=False), fixed_weights(model):
        return padding_changes(run, {name: tensor.cpu().numpy() for name, tensor in inputs.items()})


def of_like_lengths(lengths: Tensor, part_tokens: float) -> list[Tensor]:
    """Divide rows into the parts that cost least together, and return the numbers of the rows of each part.

    A part costs its rows times its longest row, and ``part_tokens``. Dynamic programming over the sorted rows finds the
    parts.

    Args:
        lengths: tokens of each row ``[B]``.
    """
    order = lengths.argsort(stable=True)
    ordered = lengths[order].numpy()
    costs, starts = np.zeros(len(ordered) + 1), np.zeros(len(ordered) + 1, dtype=int)
    for end in range(1, len(ordered) + 1):
        each = costs[:end] + (end - np.arange(end)) * ordered[end - 1] + part_tokens
        starts[end] = each.argmin()
        costs[end] = each[starts[end]]
    parts, end = [], len(ordered)
    while end:
        parts.append(order[starts[end] : end])
        end = int(starts[end])
    return parts


def run_in_parts(
    run: Callable[[Inputs], Sequence[Iterable[Tensor]]], inputs: Inputs, parts: Sequence[Tensor], axes: Sequence[int]
) -> list[list[Tensor]]:
    """Run the rows of each part together and join what comes out, padded with zeros to the length of the batch.

    Args:
        run: from inputs ``[b, t]`` to groups of tensors of these rows.
        parts: the numbers of their rows.
        axes: for each group the axis of its tensors that counts tokens; a group ``[b, C]`` has none at axis 1.
    """
    lengths, width = inputs["attention_mask"].sum(dim=1), inputs["attention_mask"].shape[1]
    found = [run({name: tensor[own, : int(lengths[own].max())] for name, tensor in inputs.items()}) for own in parts]
    order = torch.cat([*parts]).argsort()
    return [
        [
            torch.cat([_padded(tensor, axis, width) for tensor in tensors])[order]
            for tensors in zip(*(part[group] for part in found), strict=True)
        ]
        for group, axis in enumerate(axes)
    ]


def _padded(tensor: Tensor, axis: int, width: int) -> Tensor:
    if tensor.dim() <= axis + 1:  # logits of whole rows
        return tensor
    missing: Any = [0, 0] * (tensor.dim() - axis - 1) + [0, width - tensor.shape[axis]]
    return nn.functional.pad(tensor, missing)
