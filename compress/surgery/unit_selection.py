"""Select the heads or neurons to mask next, by scores ``[L, U]`` and masks (``[U]`` a layer, 1 for kept)."""

from collections.abc import Sequence

import torch
from torch import Tensor


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
    else:
        widths = _rounded(_widths_by_score(ranked, count, keep), present, keep, multiple)
    masked = [mask.clone() for mask in masks]
    for mask, units, width in zip(masked, ranked, widths, strict=True):
        for _, _, unit in units[: len(units) - width]:
            mask[unit] = 0
    return masked


def _widths_by_score(ranked: Sequence[Sequence[tuple[float, int, int]]], count: int, keep: int) -> list[int]:
    """Return how many units each layer keeps when the lowest of all go, but for the ``keep`` best of every layer."""
    may_go = sorted(unit for units in ranked for unit in units[: max(0, len(units) - keep)])
    widths = [len(units) for units in ranked]
    for _, layer, _ in may_go[:count]:
        widths[layer] -= 1
    return widths


def _level(present: Sequence[int], count: int, keep: int, multiple: int) -> list[int]:
    """Return widths with one common upper end, a multiple, so that about ``count`` units are gone."""
    left = sum(present) - count
    ends = [max(present), *range(-(-keep // multiple) * multiple, max(present), multiple)]
    best = min(ends, key=lambda end: (abs(sum(min(width, end) for width in present) - left), end))
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
