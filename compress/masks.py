"""Heads and neurons that are closed together: masks by part, 1 for open, one row ``[U]`` a layer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from compress.gates import gated
from compress.units import Part, units_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Masks = Mapping[Part, Sequence[Tensor]]


def open_masks(model: PreTrainedModel, parts: Sequence[Part] = ("heads",)) -> dict[Part, list[Tensor]]:
    """Return masks with everything open."""
    return {part: [torch.ones(units.count) for units in units_of(model, part)] for part in parts}


def masks_of(rows: Mapping[str, Sequence[Sequence[int]]]) -> Masks:
    """Return masks as they are read from JSON."""
    return {part: [torch.tensor(row, dtype=torch.float32) for row in layers] for part, layers in rows.items()}  # type: ignore[misc]


def masks_without(model: PreTrainedModel, closed: Mapping[str, Sequence[Sequence[int]]]) -> Masks:
    """Return masks that close units of a model by part and layer, as :class:`compress.training.Outcome` names them."""
    masks = open_masks(model, [part for part in ("heads", "neurons") if part in closed])
    for part, rows in masks.items():
        for row, positions in zip(rows, closed[part], strict=True):
            row[list(positions)] = 0.0
    return masks


def closed_units(masks: Sequence[Tensor]) -> dict[int, list[int]]:
    """Return layer -> positions of what masks close, as :mod:`compress.slicing` removes it."""
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
