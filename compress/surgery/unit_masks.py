"""Multiplicative masks on the outputs of heads or neurons, to simulate their removal and to score their importance.

transformers 5 has neither ``head_mask`` nor ``prune_heads`` (it ignores the former in silence), so that masks are
forward pre-hooks on the linear layer that reads the units' outputs. Shapes: B batch, T tokens, U units of a
layer, d width of one (1 for a neuron).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.models.dummy_inputs import example_inputs
from compress.models.prunable_units import Part, units_of


@dataclass
class MaskHooks:
    """Factors on the units' outputs within a :func:`mask_hooks` block, which creates it.

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
        """The model's present device: a trainer may move the model after the hooks are registered."""
        return self.first.weight.device

    def mask(self, masks: Sequence[Sequence[float] | Tensor] | None) -> None:
        """Simulate removal: one row of U factors (1 keeps, 0 removes) a layer; None takes every mask away."""
        rows = [torch.as_tensor(row, dtype=torch.float32, device=self.device) for row in masks or ()]
        if masks is not None and [row.numel() for row in rows] != self.counts:
            raise ValueError(f"masks of {[row.numel() for row in rows]} do not fit a model of {self.counts}")
        self.masks = rows

    def per_example(self, batch_size: int) -> list[Tensor]:
        """Return fresh masks of ones, ``[B, U]`` a layer.

        After one backward of the *summed* loss of a batch of B, row b of ``mask.grad`` is the gradient of example b.
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
        return torch.flatten(by_unit, -2)


@contextmanager
def mask_hooks(model: PreTrainedModel, part: Part = "heads") -> Iterator[MaskHooks]:
    """Register a mask on every head, or neuron, of a model; the hooks are removed when the block ends.

    Until :meth:`MaskHooks.mask` or :meth:`MaskHooks.per_example` is called the outputs are unchanged.
    """
    layers = units_of(model, part)
    hooks = MaskHooks([units.count for units in layers], layers[0].columns)

    def hook(index: int) -> Any:
        return lambda module, inputs: (hooks._apply(index, inputs[0]), *inputs[1:])

    handles = [units.columns.register_forward_pre_hook(hook(index)) for index, units in enumerate(layers)]
    try:
        yield hooks
    finally:
        for handle in handles:
            handle.remove()


def masks_reach_logits(model: PreTrainedModel, part: Part = "heads") -> bool:
    """Tell whether masks reach the logits: masking all units of any single layer must change them."""
    inputs = example_inputs(model)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), mask_hooks(model, part) as hooks:
            reference = model(**inputs).logits
            for masked in range(len(hooks.counts)):
                hooks.mask([[float(index != masked)] * units for index, units in enumerate(hooks.counts)])
                if torch.equal(model(**inputs).logits, reference):
                    return False
            return True
    finally:
        model.train(was_training)


Masks = Mapping[Part, Sequence[Tensor]]


def unmasked(model: PreTrainedModel, parts: Sequence[Part] = ("heads",)) -> dict[Part, list[Tensor]]:
    """Return masks of ones."""
    return {part: [torch.ones(units.count) for units in units_of(model, part)] for part in parts}


def masks_from_json(rows: Mapping[str, Sequence[Sequence[int]]]) -> Masks:
    """Return masks from lists of 0 and 1, as JSON holds them."""
    return {part: [torch.tensor(row, dtype=torch.float32) for row in layers] for part, layers in rows.items()}  # type: ignore[misc]


def masks_at(model: PreTrainedModel, masked: Mapping[str, Sequence[Sequence[int]]]) -> Masks:
    """Return masks with zeros at positions by part and layer, as in :class:`compress.training.trainer.Outcome`."""
    masks = unmasked(model, [part for part in ("heads", "neurons") if part in masked])
    for part, rows in masks.items():
        for row, positions in zip(rows, masked[part], strict=True):
            row[list(positions)] = 0.0
    return masks


def masked_positions(masks: Sequence[Tensor]) -> dict[int, list[int]]:
    """Return layer -> positions of the masked heads and neurons, as :mod:`compress.surgery.remove_units` removes it."""
    return {layer: (mask == 0).nonzero().flatten().tolist() for layer, mask in enumerate(masks)}


def mask_key(masks: Masks) -> str:
    """Return a short name for the masked heads and neurons, by part and layer."""
    given = b"".join(
        part.encode() + b":" + b"".join(row.bool().numpy().tobytes() + b"|" for row in rows)
        for part, rows in sorted(masks.items())
    )
    return hashlib.sha256(given).hexdigest()[:16]


@contextmanager
def masked(model: PreTrainedModel, masks: Masks) -> Iterator[None]:
    """Mask heads and neurons of a model within the block."""
    with ExitStack() as stack:
        for part, rows in masks.items():
            stack.enter_context(mask_hooks(model, part)).mask(rows)
        yield
