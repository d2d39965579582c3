"""What the native library reads of the convolutional student: network ``CNN`` of ``inference/native/model_file.h``."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from compress.models.networks.cnn.model import offsets_of
from compress.models.networks.small_graph import POOLING, SCALED_TABLE, in_pairs
from compress.tasks import of_config

NETWORK, TABLE = 2, f"{SCALED_TABLE}windows"
HAS_CODES = True  # whether its table may be of codes
TOLERANCE = 1e-3  # of int8 logits, as a share of the largest: a layer is of int16 here, of float32 in the graph


def layout(
    config: Mapping[str, Any], weights: Mapping[str, np.ndarray], is_int8: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the numbers of a network, and its ``remap`` ``[V]``, ``table`` ``[R, columns]`` and ``dense`` ``[S, D]``.

    A row of the table has, from the narrowest window to the widest and from left to right in each, what a token at
    that place adds to the window's filters. The first row, of zeros, is what is beyond the text.
    """
    widths, filters = config["widths"], config["filters"]
    order = np.argsort(widths)
    offsets = sorted({offset for width in widths for offset in offsets_of(width)})
    places = weights[TABLE].reshape(-1, len(offsets), len(widths), filters)
    blocks = [places[:, offsets.index(offset), number] for number in order for offset in offsets_of(widths[number])]
    numbers = {
        "pooling": POOLING["max" if of_config(config).by_word else config["pooling"]],
        "filters": filters,
        "widths": [widths[number] for number in order],
    }
    arrays = {"remap": weights["token.numbers"], "table": np.concatenate(blocks, axis=1)}
    dense = weights["dense.weight"]
    if not config["second_filters"]:
        parts = dense.reshape(-1, len(widths), filters, dense.shape[1])[:, order]
        return numbers, arrays | {"dense": parts.reshape(dense.shape)}
    name = "second.weight.int8" if is_int8 else "second.weight"
    second, size, missing = weights[name], config["second_filters"], -config["second_filters"] % 16
    ordered = second.reshape(-1, len(widths), filters, size)[:, order].reshape(second.shape)
    padded = np.pad(ordered, ((0, 0), (0, missing)))  # columns of zeros, up to a multiple of 16
    parts = np.pad(dense.reshape(-1, size, dense.shape[1]), ((0, 0), (0, missing), (0, 0)))
    arrays |= {
        "dense": parts.reshape(-1, dense.shape[1]),
        "second_weight": in_pairs(padded) if is_int8 else padded.astype(np.float32),
        "second_bias": np.pad(weights["second.bias"], (0, missing)),
    }
    if is_int8:
        scales = np.broadcast_to(weights["second.weight.scale"], size) * weights["step.255"]
        arrays["second_scale"] = np.pad(scales, (0, missing)).astype(np.float32)
    return numbers | {"second_filters": size + missing, "second_width": config["second_width"]}, arrays
