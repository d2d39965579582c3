"""What the native library reads of the n-gram student: network ``NGRAM`` of ``inference/native/model_file.h``."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from compress.models.networks.ngram.model import multipliers
from compress.models.networks.small_graph import POOLING, SCALED_TABLE

NETWORK, TABLE = 1, f"{SCALED_TABLE}ngrams"
HAS_CODES = True  # whether its table may be of codes
TOLERANCE = 1e-3  # of int8 logits, as a share of the largest: a layer is of int16 here, of float32 in the graph


def layout(
    config: Mapping[str, Any], weights: Mapping[str, np.ndarray], is_int8: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the numbers of a network, and its ``remap`` ``[V]``, ``table`` ``[R, S]`` and ``dense`` ``[S, D]``.

    Columns are added, of zeros, up to a multiple of 16.
    """
    table, dense = weights[TABLE], weights["dense.weight"]
    missing, parts = -table.shape[1] % 16, dense.reshape(-1, table.shape[1], dense.shape[1])
    numbers = {
        "pooling": POOLING[config["pooling"]],
        "longest": config["longest"],
        "buckets": config["buckets"],
        "factors": multipliers(config["tokenizer_size"], config["longest"]),
    }
    return numbers, {
        "remap": np.arange(config["tokenizer_size"]),
        "table": np.pad(table, ((0, 0), (0, missing))),
        "dense": np.pad(parts, ((0, 0), (0, missing), (0, 0))).reshape(-1, dense.shape[1]),
    }
