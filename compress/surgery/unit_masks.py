"""Gates on heads or neurons: factors on what they give, to simulate their removal and to ask what they are worth.

transformers 5 has neither ``head_mask`` nor ``prune_heads`` (it ignores the former in silence), so that the gates are
ours: a forward pre-hook on the linear layer that reads what the units give. Shapes: B batch, T tokens, U units of a
layer, d width of one (1 for a neuron).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.models.dummy_inputs import example_inputs
from compress.models.prunable_units import Part, units_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


Masks = Mapping[Part, Sequence[Tensor]]


def open_masks(model: PreTrainedModel, parts: Sequence[Part] = ("heads",)) -> dict[Part, list[Tensor]]:
    """Return masks with everything open."""
    return {part: [torch.ones(units.count) for units in units_of(model, part)] for part in parts}


def masks_of(rows: Mapping[str, Sequence[Sequence[int]]]) -> Masks:
    """Return masks as they are read from JSON."""
    return {part: [torch.tensor(row, dtype=torch.float32) for row in layers] for part, layers in rows.items()}  # type: ignore[misc]


def masks_without(model: PreTrainedModel, closed: Mapping[str, Sequence[Sequence[int]]]) -> Masks:
    """Return masks that close units of a model by part and layer, as :class:`compress.training.trainer.Outcome` names
    them.
    """
    masks = open_masks(model, [part for part in ("heads", "neurons") if part in closed])
    for part, rows in masks.items():
        for row, positions in zip(rows, closed[part], strict=True):
            row[list(positions)] = 0.0
    return masks


def closed_units(masks: Sequence[Tensor]) -> dict[int, list[int]]:
    """Return layer -> positions of what masks close, as :mod:`compress.surgery.remove_units` removes it."""
    return {layer: (mask == 0).nonzero().flatten().tolist() for layer, mask in enumerate(masks)}


def mask_key(masks: Masks) -> str:
    """Return a short name for what masks close, by part and layer."""
    given = b"".join(
        part.encode() + b":" + b"".join(row.bool().numpy().tobytes() + b"|" for row in rows)
        for part, rows in sorted(masks.items())
    )
    return hashlib.sha256(given).hexdigest()[:16]


@contextmanager
def closed(model: PreTrainedModel, masks: Masks) -> Iterator[None]:
    """Compute within the block as if what these masks close were not there."""
    with ExitStack() as stack:
        for part, rows in masks.items():
            stack.enter_context(gated(model, part)).mask(rows)
        yield
