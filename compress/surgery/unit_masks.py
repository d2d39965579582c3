"""Multiplicative masks on the outputs of heads or neurons: simulate their removal, and select which to mask next.

transformers 5 has neither ``head_mask`` nor ``prune_heads`` (it ignores the former in silence), so that masks are
forward pre-hooks on the linear layer that reads the units' outputs. Shapes: B batch, T tokens, U units of a
layer, d width of one (1 for a neuron).
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.models.components import Part, units_of


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
        self.masks = [torch.as_tensor(row, dtype=torch.float32, device=self.device) for row in masks or ()]

    def per_example(self, batch_size: int) -> list[Tensor]:
        """Return fresh masks of ones, ``[B, U]`` a layer.

        After one backward of the *summed* loss of a batch of B, row b of ``mask.grad`` is the gradient of example b.
        """
        self.examples = [torch.ones(batch_size, units, device=self.device, requires_grad=True) for units in self.counts]
        return self.examples

    def _apply(self, layer: int, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Multiply the outputs of the units of a layer, ``[B, T, U * d]``, by its factors: a forward pre-hook."""
        if not self.masks and not self.examples:
            return inputs
        given, *others = inputs
        by_unit = given.unflatten(-1, (self.counts[layer], -1))
        if self.masks:
            by_unit = by_unit * self.masks[layer].to(given.dtype).view(1, 1, -1, 1)
        if self.examples:
            by_unit = by_unit * self.examples[layer].to(given.dtype)[:, None, :, None]
        return by_unit.flatten(-2), *others


@contextmanager
def mask_hooks(model: PreTrainedModel, part: Part = "heads") -> Iterator[MaskHooks]:
    """Register a mask on every head, or neuron, of a model; the hooks are removed when the block ends.

    Until :meth:`MaskHooks.mask` or :meth:`MaskHooks.per_example` is called the outputs are unchanged.
    """
    layers = units_of(model, part)
    hooks = MaskHooks([units.count for units in layers], layers[0].columns)
    with ExitStack() as handles:
        for index, units in enumerate(layers):
            handles.callback(units.columns.register_forward_pre_hook(partial(hooks._apply, index)).remove)
        yield hooks


Masks = Mapping[Part, Sequence[Tensor]]


def unmasked(model: PreTrainedModel, parts: Sequence[Part] = ("heads",)) -> dict[Part, list[Tensor]]:
    return {part: [torch.ones(units.count) for units in units_of(model, part)] for part in parts}


def masks_from_json(rows: Mapping[str, Sequence[Sequence[int]]]) -> Masks:
    return {part: [torch.tensor(row, dtype=torch.float32) for row in layers] for part, layers in rows.items()}  # type: ignore[misc]


def masks_at(model: PreTrainedModel, masked: Mapping[str, Sequence[Sequence[int]]]) -> Masks:
    """Return masks with zeros at positions by part and layer, as in :class:`compress.training.trainer.Outcome`."""
    masks = unmasked(model, [part for part in ("heads", "neurons") if part in masked])
    for part, rows in masks.items():
        for row, positions in zip(rows, masked[part], strict=True):
            row[list(positions)] = 0.0
    return masks


def masked_positions(masks: Sequence[Tensor]) -> dict[int, list[int]]:
    """Return layer -> positions of the masked heads and neurons, as :mod:`compress.surgery.remove` removes it."""
    return {layer: (mask == 0).nonzero().flatten().tolist() for layer, mask in enumerate(masks)}


def mask_key(masks: Masks) -> str:
    given = [
        part.encode() + b":" + b"".join(row.bool().numpy().tobytes() + b"|" for row in masks[part])
        for part in sorted(masks)
    ]
    return hashlib.sha256(b"".join(given)).hexdigest()[:16]


@contextmanager
def masked(model: PreTrainedModel, masks: Masks) -> Iterator[None]:
    with ExitStack() as stack:
        for part, rows in masks.items():
            stack.enter_context(mask_hooks(model, part)).mask(rows)
        yield


def normalised(scores: Tensor) -> Tensor:
    """Divide each layer's scores ``[L, U]`` by their L2 norm (Michel et al. 2019, section 4.1)."""
    norms = scores.norm(dim=1, keepdim=True)
    return torch.where(norms > 0, scores / norms, scores)


def mask_lowest(
    scores: Tensor, masks: Sequence[Tensor], count: int, *, keep: int = 1, multiple: int = 1, by_layer: bool = False
) -> list[Tensor]:
    """Return masks with ``count`` more units masked: the lowest of all layers, or those of every layer above one width.

    Ties go by layer and unit, so that the same scores always give the same masks.

    Args:
        keep: how many units every layer keeps at least.
        multiple: what a layer keeps is a multiple of this, where it loses anything; the total is the nearest that such
            widths allow.
        by_layer: all layers come down to one width, as far as they are above it; the total is the nearest that such a
            width allows.

    Raises:
        ValueError: the layers cannot give so many.
    """
    present = [int(mask.sum()) for mask in masks]
    if sum(max(0, number - keep) for number in present) < count:
        raise ValueError("more units to mask than the layers can give")
    ranked = [
        sorted((float(scores[layer, unit]), layer, int(unit)) for unit in mask.nonzero().flatten())
        for layer, mask in enumerate(masks)
    ]
    if by_layer:
        widths = _level(present, count, keep, multiple)
    else:  # the lowest of all, but for the best of every layer
        removable = sorted(unit for units in ranked for unit in units[: max(0, len(units) - keep)])
        removed = Counter(layer for _, layer, _ in removable[:count])
        widths = _rounded([len(units) - removed[layer] for layer, units in enumerate(ranked)], present, keep, multiple)
    masked = [mask.clone() for mask in masks]
    for mask, units, width in zip(masked, ranked, widths, strict=True):
        for _, _, unit in units[: len(units) - width]:
            mask[unit] = 0
    return masked


def _level(present: Sequence[int], count: int, keep: int, multiple: int) -> list[int]:
    """Return widths with one common upper end, a multiple, so that about ``count`` units are gone."""
    ends = [max(present), *range(-(-keep // multiple) * multiple, max(present), multiple)]
    best = min(ends, key=lambda end: (abs(sum(present) - count - sum(min(width, end) for width in present)), end))
    return [min(width, best) for width in present]


def _rounded(widths: Sequence[int], present: Sequence[int], keep: int, multiple: int) -> list[int]:
    """Return multiples near to these widths whose sum is near to theirs: the largest remainders are rounded up.

    A layer that loses nothing keeps its width, whatever it is, and so does one that is no wider than one multiple.
    """
    if multiple == 1:
        return list(widths)
    least = [min(number, -(-keep // multiple) * multiple) for number in present]
    lower = [
        width if width == number else max(low, width // multiple * multiple)
        for width, number, low in zip(widths, present, least, strict=True)
    ]
    spare = sum(widths) - sum(lower)
    by_remainder = sorted(range(len(widths)), key=lambda layer: (lower[layer] - widths[layer], layer))
    for layer in by_remainder:
        step = min(multiple, present[layer] - lower[layer])
        if widths[layer] > lower[layer] and 2 * spare >= step:
            lower[layer] += step
            spare -= step
    return lower
