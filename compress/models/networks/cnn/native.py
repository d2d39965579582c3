"""What the native library reads of the convolutional student: network ``CNN`` of ``inference/native/model_file.h``."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from compress.errors import Unavailable
from compress.models.networks.cnn.model import offsets_of
from compress.models.networks.small_graph import POOLING, SCALED_TABLE

NETWORK, TABLE = 2, f"{SCALED_TABLE}windows"


def layout(
    config: Mapping[str, Any], weights: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the numbers of a network, and its ``remap`` ``[V]``, ``table`` ``[R, columns]`` and ``dense`` ``[S, D]``.

    A row of the table has, from the narrowest window to the widest and from left to right in each, what a token at
    that place adds to the window's filters. The first row, of zeros, is what is beyond the text.

    Raises:
        Unavailable: it has a second layer of convolutions.
    """
    if config["second_filters"]:
        raise Unavailable("its second layer of convolutions has no native kernel")
    widths, filters = config["widths"], config["filters"]
    order = np.argsort(widths)
    offsets = sorted({offset for width in widths for offset in offsets_of(width)})
    places = weights[TABLE].reshape(-1, len(offsets), len(widths), filters)
    blocks = [places[:, offsets.index(offset), number] for number in order for offset in offsets_of(widths[number])]
    dense = weights["dense.weight"]
    parts = dense.reshape(-1, len(widths), filters, dense.shape[1])[:, order]
    numbers = {
        "pooling": POOLING[config["pooling"]],
        "filters": filters,
        "widths": [widths[number] for number in order],
    }
    return numbers, {
        "remap": weights["token.numbers"],
        "table": np.concatenate(blocks, axis=1),
        "dense": parts.reshape(dense.shape),
    }
