"""Uniform quantization, and how quantized models are stored: keys of ``config.json``, and packed weights.

Numbers are rounded to the nearest of about ``2**bits`` evenly spaced levels. Gradients pass as if nothing had been
rounded (the straight-through estimator, Bengio et al. 2013, arXiv:1308.3432).

Packed weights are codes of few bits without gaps, with the offset and the step of each group. No CPU kernel computes
with them: opening a packed model unpacks it to float32, which gives exactly the rounded weights that were packed.
Packing makes the file smaller, not inference faster.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from compress.errors import refuse
from compress.files import faults_of, parse_json
from compress.models.manifest import PACKED_NAME

_SMALLEST_STEP = torch.finfo(torch.float32).tiny
_LAYOUT = "layout"


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, values: Tensor, quantized: Tensor) -> Tensor:
        return quantized.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def straight_through(values: Tensor, quantized: Tensor) -> Tensor:
    """Return ``quantized``, whose gradient goes to ``values`` unchanged."""
    return cast(Tensor, _StraightThrough.apply(values, quantized.to(values.dtype)))  # type: ignore[no-untyped-call]


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
    largest = torch.as_tensor(np.abs(matrix).max(axis=axis, keepdims=keepdims))
    codes, steps = symmetric_codes(torch.tensor(matrix), largest, bits)
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


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return uint8 codes below ``2**bits`` as bytes without gaps, the lowest bit first."""
    return np.packbits(np.unpackbits(codes.reshape(-1, 1), axis=1, count=bits, bitorder="little"), bitorder="little")


def unpack(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return the uint8 codes ``[count]`` that :func:`pack` packed."""
    unpacked = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(unpacked, axis=1, bitorder="little")[:, 0]


def save_packed(model: PreTrainedModel, bits: Mapping[str, int], groups: int, directory: Path) -> None:
    """Write a model's weights to ``packed.safetensors``: those of the modules in ``bits`` packed, others in float32."""
    tensors: dict[str, Tensor] = {}
    layout: dict[str, Any] = {}
    packed = {f"{module}.weight": width for module, width in bits.items()}
    for name, weight in model.state_dict().items():
        if name not in packed:
            tensors[name] = weight.contiguous().clone()
            continue
        grid = grid_of(weight, packed[name], groups)
        codes = grid.codes(weight, torch.arange(len(weight))).numpy()
        tensors[f"{name}.codes"] = torch.from_numpy(pack(codes, grid.bits))
        tensors[f"{name}.low"], tensors[f"{name}.step"] = grid.low, grid.step
        layout[name] = {"bits": grid.bits, "shape": list(weight.shape), "rows_per_group": grid.rows_per_group}
    save_file(tensors, str(directory / PACKED_NAME), metadata={"format": "pt", _LAYOUT: json.dumps(layout)})


def read_packed(directory: Path) -> dict[str, Tensor]:
    """Return the state dict, float32, of a directory with ``packed.safetensors``.

    Raises:
        CompressError: the file is damaged or does not say how it is packed.
    """
    path = directory / PACKED_NAME
    with faults_of(path, "packed weights"), safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        stored = (file.metadata() or {}).get(_LAYOUT, "")
    layout: Any = parse_json(stored, f"the layout of {path}") if stored else None
    known = isinstance(layout, dict)
    refuse((not known, f"{path} does not say how its weights are packed; copy or make it again"))
    with faults_of(path, "packed weights"):
        for name, how in layout.items():
            codes, low, step = (tensors.pop(f"{name}.{part}") for part in ("codes", "low", "step"))
            bits, shape, rows, count = how["bits"], how["shape"], how["rows_per_group"], math.prod(how["shape"])
            if min(bits, rows, *shape) < 1 or codes.numel() != -(-count * bits // 8):
                raise ValueError(f"{codes.numel():,} bytes do not hold {count:,} codes of {bits} bits")
            numbers = torch.from_numpy(unpack(codes.numpy(), bits, count).reshape(shape))
            tensors[name] = Grid(low, step, bits, rows).values(numbers, torch.arange(shape[0]))
    return tensors


# Keys of config.json. Quantizers read them.
ACTIVATION_RANGES = "activation_ranges"  # linear module -> largest magnitude of its inputs
WEIGHT_BITS = "weight_bits"  # linear or embedding module -> bits of its weight
WEIGHT_GROUPS = "weight_groups"  # how many groups of rows a weight has at most


def forget_quantization(config: PretrainedConfig) -> None:
    """Drop what a config says of quantization: weights that are trained or built anew do not have these ranges."""
    for key in (ACTIVATION_RANGES, WEIGHT_BITS, WEIGHT_GROUPS):
        if hasattr(config, key):
            delattr(config, key)
