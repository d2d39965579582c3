"""Gates on heads or neurons: factors on what they give, to simulate their removal and to ask what they are worth.

transformers 5 has neither ``head_mask`` nor ``prune_heads`` (it ignores the former in silence), so that the gates are
ours: a forward pre-hook on the linear layer that reads what the units give. Shapes: B batch, T tokens, U units of a
layer, d width of one (1 for a neuron).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.model_inputs import example_inputs
from compress.units import Part, units_of


@dataclass
class Gates:
    """Factors on the units' outputs while :func:`gated` is open. Made by that function.

    ``masks`` are fixed ``[U]`` tensors, ``examples`` are ``[B, U]`` tensors of ones that require a gradient; both
    have one entry a layer, or none when they are not in use. A unit's output is multiplied by both. ``first`` is the
    linear layer that reads the first layer's units.
    """

    counts: list[int]
    first: nn.Linear
    masks: list[Tensor] = field(default_factory=list)
    examples: list[Tensor] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """Where the model is now: one that gets its gates before a trainer moves it keeps them."""
        return self.first.weight.device

    def mask(self, masks: Sequence[Sequence[float] | Tensor] | None) -> None:
        """Simulate removal: one row of U factors (1 keeps, 0 removes) a layer; None takes every mask away."""
        rows = [torch.as_tensor(row, dtype=torch.float32, device=self.device) for row in masks or ()]
        if masks is not None and [row.numel() for row in rows] != self.counts:
            raise ValueError(f"masks of {[row.numel() for row in rows]} do not fit a model of {self.counts}")
        self.masks = rows

    def per_example(self, batch_size: int) -> list[Tensor]:
        """Return fresh gates of ones, ``[B, U]`` a layer.

        After one backward of the *summed* loss of a batch of B, row b of ``gate.grad`` is the gradient of example b.
        """
        self.examples = [torch.ones(batch_size, units, device=self.device, requires_grad=True) for units in self.counts]
        return self.examples

    def _apply(self, layer: int, given: Tensor) -> Tensor:
        """Multiply what the units of a layer gave, ``[B, T, U * d]``, by its factors."""
        if not self.masks and not self.examples:
            return given
        by_unit = given.unflatten(-1, (self.counts[layer], -1))
        if self.masks:
            by_unit = by_unit * self.masks[layer].to(given.dtype).view(1, 1, -1, 1)
        if self.examples:
            by_unit = by_unit * self.examples[layer].to(given.dtype)[:, None, :, None]
        return by_unit.flatten(-2)


@contextmanager
def gated(model: PreTrainedModel, part: Part = "heads") -> Iterator[Gates]:
    """Put gates on every head, or neuron, of a model; they are gone when the block ends.

    Until :meth:`Gates.mask` or :meth:`Gates.per_example` is called the model computes what it always does.
    """
    layers = units_of(model, part)
    gates = Gates([units.count for units in layers], layers[0].columns)

    def hook(index: int) -> Any:
        return lambda module, inputs: (gates._apply(index, inputs[0]), *inputs[1:])

    handles = [units.columns.register_forward_pre_hook(hook(index)) for index, units in enumerate(layers)]
    try:
        yield gates
    finally:
        for handle in handles:
            handle.remove()


def gates_work(model: PreTrainedModel, part: Part = "heads") -> bool:
    """Tell whether gates reach the logits: closing all units of any single layer must change them."""
    inputs = example_inputs(model)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), gated(model, part) as gates:
            reference = model(**inputs).logits
            for closed in range(len(gates.counts)):
                gates.mask([[float(index != closed)] * units for index, units in enumerate(gates.counts)])
                if torch.equal(model(**inputs).logits, reference):
                    return False
            return True
    finally:
        model.train(was_training)
