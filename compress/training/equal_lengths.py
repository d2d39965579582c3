"""Run a model in training so that no row depends on the padding beside it, as inference runs it.

A batch of a model whose logits depend on padding is run in parts of one length, and what came out is joined again: the
losses read the same rows in the same batch as of any other model. T tokens of the batch, t of a part.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.inference.padding import padding_changes
from compress.models.modeling import input_names

Inputs = dict[str, Tensor]


def reads_padding(model: PreTrainedModel, inputs: Inputs) -> bool:
    """Tell by a trial in float32 whether the logits of the shortest row of a batch depend on its padding."""
    forward, names = type(model).forward, input_names(model)  # mixed precision replaces the model's own

    def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.from_numpy(values).to(model.device) for name, values in arrays.items() if name in names}
        logits: np.ndarray = forward(model, **tensors).logits.cpu().numpy()
        return logits

    with torch.no_grad(), torch.autocast(model.device.type, enabled=False), _evaluating(model):
        return padding_changes(run, {name: tensor.cpu().numpy() for name, tensor in inputs.items()})


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, in whatever modules it is on."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def in_equal_lengths(
    run: Callable[[Inputs], Sequence[Iterable[Tensor]]], inputs: Inputs, axes: Sequence[int]
) -> list[list[Tensor]]:
    """Run rows of one length together and join what comes out, padded with zeros to the length of the batch.

    Args:
        run: from inputs ``[b, t]`` to groups of tensors of these rows.
        axes: for each group the axis of its tensors that counts tokens; a group ``[b, C]`` has none at axis 1.
    """
    lengths, width = inputs["attention_mask"].sum(dim=1), inputs["attention_mask"].shape[1]
    rows = [torch.nonzero(lengths == length).flatten() for length in lengths.unique()]
    parts = [run({name: tensor[own, : int(lengths[own[0]])] for name, tensor in inputs.items()}) for own in rows]
    order = torch.cat(rows).argsort()
    return [
        [
            torch.cat([_padded(tensor, axis, width) for tensor in tensors])[order]
            for tensors in zip(*(part[group] for part in parts), strict=True)
        ]
        for group, axis in enumerate(axes)
    ]


def _padded(tensor: Tensor, axis: int, width: int) -> Tensor:
    if tensor.dim() <= axis + 1:  # logits of whole rows
        return tensor
    missing: Any = [0, 0] * (tensor.dim() - axis - 1) + [0, width - tensor.shape[axis]]
    return nn.functional.pad(tensor, missing)
