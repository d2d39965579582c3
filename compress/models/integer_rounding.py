"""Uniform quantization: round numbers to the nearest of about ``2**bits`` evenly spaced levels.

Gradients pass as if nothing had been rounded (the straight-through estimator, Bengio et al. 2013, arXiv:1308.3432).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SMALLEST_STEP = torch.finfo(torch.float32).tiny


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, values: Tensor, quantized: Tensor) -> Tensor:
        return quantized.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def straight_through(values: Tensor, quantized: Tensor) -> Tensor:
    """Return ``quantized``, whose gradient goes to ``values`` unchanged."""
    through: Tensor = _StraightThrough.apply(values, quantized.to(values.dtype))  # type: ignore[no-untyped-call]
    return through


def symmetric_codes(values: Tensor, largest: Tensor | float, bits: int = 8) -> tuple[Tensor, Tensor]:
    """Return whole numbers from ``-(2**(bits-1) - 1)`` to that, and the step by which they are multiplied.

    ``q = clamp(round(x / step))`` with ``step = largest / (2**(bits-1) - 1)``, which is 127 steps for 8 bits (Zafrir et
    al. 2019, Q8BERT, arXiv:1910.06188, section 2.1). What is larger than ``largest`` is cut to it.
    """
    last = 2 ** (bits - 1) - 1
    step = (torch.as_tensor(largest, dtype=torch.float32, device=values.device) / last).clamp(min=_SMALLEST_STEP)
    return (values.float() / step).round().clamp(-last, last), step


def fake_symmetric(values: Tensor, largest: Tensor | float, bits: int = 8) -> Tensor:
    """Return ``values`` rounded as :func:`symmetric_codes` does; gradients pass, also of what was cut."""
    with torch.no_grad():
        codes, step = symmetric_codes(values, largest, bits)
    return straight_through(values, codes * step)


def symmetric_int8(
    matrix: np.ndarray, *, axis: int | None, keepdims: bool = False, bits: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 codes as :func:`symmetric_codes` has them, and the step, or the steps over the other axis."""
    largest = np.abs(matrix).max(axis=axis, keepdims=keepdims)
    codes, steps = symmetric_codes(torch.tensor(matrix), torch.as_tensor(largest), bits)
    return codes.to(torch.int8).numpy(), steps.numpy()


@dataclass(frozen=True)
class Grid:
    """The ``2**bits`` numbers that each group of consecutive rows of a matrix may hold, from its least to its largest.

    ``low`` and ``step`` are ``[G, 1]`` float32; the numbers of group g are ``low[g] + step[g] * code`` (Shen et al.
    2020, Q-BERT, arXiv:1909.05840, sections 3 and 3.2).
    """

    low: Tensor
    step: Tensor
    bits: int
    rows_per_group: int

    def codes(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Return uint8 codes of ``rows`` ``[..., I]``, which are the rows ``numbers`` ``[...]`` of the matrix."""
        group = numbers // self.rows_per_group
        steps = (rows.float() - self.low[group]) / self.step[group]
        return steps.round().clamp(0, 2**self.bits - 1).to(torch.uint8)

    def values(self, codes: Tensor, numbers: Tensor) -> Tensor:
        group = numbers // self.rows_per_group
        return codes.float() * self.step[group] + self.low[group]

    def fake(self, rows: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Return rows ``[..., I]`` of the matrix (all of them by default) rounded to the grid; gradients pass."""
        if numbers is None:
            numbers = torch.arange(rows.shape[0], device=rows.device)
        with torch.no_grad():
            rounded = self.values(self.codes(rows, numbers), numbers)
        return straight_through(rows, rounded)


@torch.no_grad()
def grid_of(matrix: Tensor, bits: int, groups: int) -> Grid:
    """Return the grid of a matrix ``[O, I]`` with at most so many groups of rows, each with its own range.

    A row of a linear layer is an output neuron. The paper has 128 groups of six neurons for the 768 of BERT-base.
    """
    rows_per_group = math.ceil(len(matrix) / groups)
    parts = matrix.float().split(rows_per_group)
    low, high = (torch.stack([limit(part) for part in parts])[:, None] for limit in (torch.amin, torch.amax))
    return Grid(low, ((high - low) / (2**bits - 1)).clamp(min=_SMALLEST_STEP), bits, rows_per_group)
