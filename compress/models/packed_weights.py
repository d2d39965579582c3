"""How quantized models are stored: keys of ``config.json``, and the file format of packed weights.

Packed weights are codes of few bits without gaps, with the offset and the step of each group. No CPU kernel computes
with them: opening a packed model unpacks it to float32, which gives exactly the rounded weights that were packed.
Packing makes the file smaller, not inference faster.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from compress.errors import refuse
from compress.files import faults_of, parse_json
from compress.models.integer_rounding import Grid, grid_of
from compress.models.manifest import PACKED_NAME

_LAYOUT = "layout"


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
    unsaid = f"{path} does not say how its weights are packed; copy or make it again"
    refuse((not isinstance(layout, dict), unsaid))
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
