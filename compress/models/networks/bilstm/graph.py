"""The graph of the BiLSTM student, node by node: torch's exporters unroll or refuse a packed sequence."""

import numpy as np
from onnx import ModelProto, TensorProto, helper

from compress.models.networks.bilstm.model import BiLSTMForSequenceClassification
from compress.models.networks.small_graph import SCALED_TABLE, TABLE_LIMIT, array, small_graph


def graph(model: BiLSTMForSequenceClassification) -> ModelProto:
    """Return the model's graph (:func:`compress.models.networks.small_graph.small_graph`).

    That of a tagger reads the states of all tokens instead of the final ones.
    """
    hidden = model.config.hidden_size
    embedding = array(model.embedding.weight)
    largest = np.abs(embedding).max(axis=0)
    scales = np.where(largest > 0, largest / TABLE_LIMIT, 1).astype(np.float32)
    # The last two columns, which no weight reads, hold the range of int8: so it is the same in every batch.
    table = np.pad(embedding / scales, [(0, 0), (0, 2)])
    table[:, -2:] = -TABLE_LIMIT - 1, TABLE_LIMIT
    weights: dict[str, np.ndarray] = {
        f"{SCALED_TABLE}embedding": table,
        "lstm.weight": np.pad(_both_directions(model, "weight_ih") * scales, [(0, 0), (0, 0), (0, 2)]),
        "lstm.recurrence": _both_directions(model, "weight_hh"),
        "lstm.bias": np.concatenate([_both_directions(model, f"bias_{part}") for part in ("ih", "hh")], axis=1),
        "joined": np.array([0, 0, 2 * hidden] if model.tags else [0, 2 * hidden], dtype=np.int64),
    }
    layers = [
        helper.make_node("Cast", ["sizes"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Gather", [f"{SCALED_TABLE}embedding", "kept_ids"], ["embedded"]),
        helper.make_node("Transpose", ["embedded"], ["by_time"], perm=[1, 0, 2]),
        helper.make_node(
            "LSTM",
            ["by_time", "lstm.weight", "lstm.recurrence", "lstm.bias", "lengths"],
            ["states"] if model.tags else ["", "states"],
            hidden_size=hidden,
            direction="bidirectional",
        ),
        # States are [length, 2, batch, hidden], the final ones [2, batch, hidden].
        helper.make_node("Transpose", ["states"], ["by_row"], perm=[2, 0, 1, 3] if model.tags else [1, 0, 2]),
        helper.make_node("Reshape", ["by_row", "joined"], ["encoded"]),
    ]
    return small_graph(model, weights, layers)


def _both_directions(model: BiLSTMForSequenceClassification, name: str) -> np.ndarray:
    """Return ``[2, 4 * hidden, ...]``. torch orders the gates input, forget, cell, output; ONNX i, o, f, c."""
    stacked = []
    for suffix in ("_l0", "_l0_reverse"):
        inward, forget, cell, outward = np.split(array(getattr(model.lstm, name + suffix)), 4)
        stacked.append(np.concatenate([inward, outward, forget, cell]))
    return np.stack(stacked)
