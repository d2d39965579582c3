"""What the native library reads of the BiLSTM student: network ``LSTM`` of ``inference/native/model_file.h``."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from compress.models.networks.small_graph import LARGEST_INT16, SCALED_TABLE, in_pairs

NETWORK, TABLE = 3, f"{SCALED_TABLE}embedding"
HAS_CODES = False  # whether its table may be of codes
# Of int8 logits, as a share of the largest: states are rounded at every token, and one that is rounded up here and down
# in the graph changes those behind it.
TOLERANCE = 1e-2


def layout(
    config: Mapping[str, Any], weights: Mapping[str, np.ndarray], is_int8: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the numbers of a network, its ``remap`` ``[V]``, ``table`` ``[R, 8 * U]``, ``dense`` ``[S, D]`` and more.

    A row of the table is what the LSTM's weights make of a token's embedding, with the bias: so that is not computed
    for each token that is read. It is of int16 in an int8 model, one scale a column. Units are added, whose states are
    0, up to a multiple of four. Of an int8 graph two units more are those that hold the range of states.
    """
    names = [f"lstm.{part}" for part in ("weight", "recurrence", "bias")]
    if is_int8:
        names = [f"states.{part}" for part in ("input.int8", "recurrent.int8", "bias")]
    inward, recurrent, bias = (weights[name] for name in names)
    if is_int8:  # [2, K, 4 * units] there, [2, 4 * units, K] otherwise
        inward, recurrent = inward.astype(np.float32), recurrent.astype(np.int16)
        inward *= weights["states.input.scale"][:, None]
    else:
        inward, recurrent = inward.transpose(0, 2, 1), recurrent.transpose(0, 2, 1)
    units = recurrent.shape[1]
    missing, hidden = -units % 4, config["hidden_size"]

    def wide(array: np.ndarray) -> np.ndarray:
        """Return ``[..., 4 * units]`` with columns of zeros for the units that are added."""
        parts = array.reshape(*array.shape[:-1], 4, units)
        return np.pad(parts, [*[(0, 0)] * (parts.ndim - 1), (0, missing)]).reshape(*array.shape[:-1], -1)

    sums = np.stack(np.split(bias, 2, axis=1)).sum(axis=0)  # of the weights of inputs and of states
    added = np.concatenate([weights[TABLE] @ part + one for part, one in zip(inward, sums, strict=True)], axis=1)
    table = wide(added.reshape(-1, 2, 4 * units)).reshape(len(added), -1)
    square: np.ndarray = np.pad(wide(recurrent), ((0, 0), (0, missing), (0, 0)))
    dense = weights["dense.weight"]
    parts = np.pad(dense.reshape(-1, hidden, dense.shape[1]), ((0, 0), (0, units + missing - hidden), (0, 0)))
    numbers = {"padding": config.get("pad_token_id") or 0}
    arrays = {"remap": weights["remap"], "dense": parts.reshape(-1, dense.shape[1])}
    if not is_int8:
        return numbers, arrays | {"table": table.astype(np.float32), "recurrent_weight": square.astype(np.float32)}
    largest = np.abs(table).max(axis=0)
    scales = np.where(largest > 0, largest / LARGEST_INT16, 1)
    return numbers, arrays | {
        "table": np.rint(table / scales).astype(np.int16),
        "table_scale": scales.astype(np.float32),
        "recurrent_weight": np.stack([in_pairs(one) for one in square]),
        "recurrent_scale": wide(weights["states.recurrent.scale"]).astype(np.float32),
    }
