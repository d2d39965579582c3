"""Keys of ``config.json`` for the quantization that a model was trained for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig


# Keys of config.json. Quantizers read them.
ACTIVATION_RANGES = "activation_ranges"  # linear module -> largest magnitude of its inputs
WEIGHT_BITS = "weight_bits"  # linear or embedding module -> bits of its weight
WEIGHT_GROUPS = "weight_groups"  # how many groups of rows a weight has at most
_KEYS = (ACTIVATION_RANGES, WEIGHT_BITS, WEIGHT_GROUPS)


def forget_quantization(config: PretrainedConfig) -> None:
    """Drop what a config says of quantization: weights that are trained or built anew do not have these ranges."""
    for key in _KEYS:
        if hasattr(config, key):
            delattr(config, key)
