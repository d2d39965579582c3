"""The graph of the BiLSTM student, node by node: torch's exporters unroll or refuse a packed sequence."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from compress.exporting.onnx_graph import DEFAULT_OPSET, write_graph
from compress.models.modeling import is_tagger
from compress.models.modeling.bilstm import BiLSTMConfig, BiLSTMForSequenceClassification

# The newest file format that the ONNX Runtime of three years ago reads.
_IR_VERSION = 9
MODEL_TYPES = (BiLSTMConfig.model_type,)


def export(model: BiLSTMForSequenceClassification, path: Path, *, opset: int = DEFAULT_OPSET) -> None:
    """Write the model's graph. Inputs int64 ``[batch, length]``, output ``logits`` ``[batch, C]``.

    That of a tagger gives ``[batch, length, C]``: it reads the states of all tokens instead of the final ones.
    """
    tags = is_tagger(model)
    hidden = model.config.hidden_size
    weights = {
        "remap": _array(model.remap).astype(np.int32),
        "embedding": _array(model.embedding.weight),
        "lstm.weight": _both_directions(model, "weight_ih", hidden),
        "lstm.recurrence": _both_directions(model, "weight_hh", hidden),
        "lstm.bias": np.concatenate(
            [_both_directions(model, "bias_ih", hidden), _both_directions(model, "bias_hh", hidden)], axis=1
        ),
        "dense.weight": _array(model.dense.weight.T),
        "dense.bias": _array(model.dense.bias),
        "classifier.weight": _array(model.classifier.weight.T),
        "classifier.bias": _array(model.classifier.bias),
        "one": np.array([1], dtype=np.int64),
        "joined": np.array([0, 0, 2 * hidden] if tags else [0, 2 * hidden], dtype=np.int64),
    }
    siamese = model.config.pairs == "siamese"
    if siamese:
        weights |= _split_constants(model.config)
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["row_sums"], keepdims=0),
        *(_split_nodes() if siamese else ()),
        helper.make_node("Max", ["sizes" if siamese else "row_sums", "one"], ["at_least_one"]),
        helper.make_node("Cast", ["at_least_one"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Gather", ["remap", "texts" if siamese else "input_ids"], ["kept_ids"]),
        helper.make_node("Gather", ["embedding", "kept_ids"], ["embedded"]),
        helper.make_node("Transpose", ["embedded"], ["by_time"], perm=[1, 0, 2]),
        helper.make_node(
            "LSTM",
            ["by_time", "lstm.weight", "lstm.recurrence", "lstm.bias", "lengths"],
            ["states"] if tags else ["", "final"],
            hidden_size=hidden,
            direction="bidirectional",
        ),
        # States are [length, 2, batch, hidden], the final ones [2, batch, hidden].
        helper.make_node(
            "Transpose", ["states" if tags else "final"], ["by_row"], perm=[2, 0, 1, 3] if tags else [1, 0, 2]
        ),
        helper.make_node("Reshape", ["by_row", "joined"], ["encoded" if siamese else "state"]),
        *(_comparison_nodes() if siamese else ()),
        helper.make_node("MatMul", ["state", "dense.weight"], ["dense.product"]),
        helper.make_node("Add", ["dense.product", "dense.bias"], ["dense.sum"]),
        helper.make_node("Relu", ["dense.sum"], ["dense"]),
        helper.make_node("MatMul", ["dense", "classifier.weight"], ["classifier.product"]),
        helper.make_node("Add", ["classifier.product", "classifier.bias"], ["logits"]),
    ]
    tokens = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in _INPUTS]
    shape = ["batch", "length", model.config.num_labels] if tags else ["batch", model.config.num_labels]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
    initializers = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "bilstm", tokens, [logits], initializers)
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="compress", ir_version=_IR_VERSION
    )
    onnx.checker.check_model(proto)
    write_graph(proto, path)


_INPUTS = ("input_ids", "attention_mask")


def _split_constants(config: Any) -> dict[str, np.ndarray]:
    before, between, after = config.special_tokens
    return {
        "zero": np.array(0, dtype=np.int64),
        "step": np.array(1, dtype=np.int64),
        "rows_only": np.array([0], dtype=np.int64),
        "separator": np.array(config.separator_token_id, dtype=np.int64),
        "padding": np.array(getattr(config, "pad_token_id", None) or 0, dtype=np.int64),
        "before": np.array(before, dtype=np.int64),
        "between": np.array(between, dtype=np.int64),
        "after": np.array(after, dtype=np.int64),
    }


def _split_nodes() -> list[NodeProto]:
    """Make ``texts`` ``[2 * batch, length]`` and ``sizes`` ``[2 * batch]`` as the model's ``_split`` does."""
    return [
        helper.make_node("Shape", ["input_ids"], ["width"], start=1, end=2),
        helper.make_node("Squeeze", ["width", "rows_only"], ["columns"]),
        helper.make_node("Range", ["zero", "columns", "step"], ["positions"]),
        helper.make_node("Unsqueeze", ["row_sums", "one"], ["row_lengths"]),
        helper.make_node("Equal", ["input_ids", "separator"], ["is_separator"]),
        helper.make_node("Where", ["is_separator", "positions", "row_lengths"], ["separators"]),
        helper.make_node("ReduceMin", ["separators", "one"], ["ends"], keepdims=1),
        helper.make_node("Mul", ["ends", "zero"], ["zeros"]),
        helper.make_node("Add", ["zeros", "before"], ["first_starts"]),
        helper.make_node("Add", ["ends", "between"], ["second_starts"]),
        helper.make_node("Concat", ["first_starts", "second_starts"], ["starts"], axis=0),
        helper.make_node("Sub", ["row_lengths", "after"], ["second_ends"]),
        helper.make_node("Concat", ["ends", "second_ends"], ["both_ends"], axis=0),
        helper.make_node("Sub", ["both_ends", "starts"], ["row_sizes"]),
        helper.make_node("Squeeze", ["row_sizes", "one"], ["sizes"]),
        helper.make_node("Add", ["starts", "positions"], ["wanted"]),
        helper.make_node("Sub", ["columns", "step"], ["last"]),
        helper.make_node("Min", ["wanted", "last"], ["sources"]),
        helper.make_node("Concat", ["input_ids", "input_ids"], ["twice"], axis=0),
        helper.make_node("GatherElements", ["twice", "sources"], ["shifted"], axis=1),
        helper.make_node("Less", ["positions", "row_sizes"], ["is_text"]),
        helper.make_node("Where", ["is_text", "shifted", "padding"], ["texts"]),
    ]


def _comparison_nodes() -> list[NodeProto]:
    """Make ``state`` ``[h1; h2; h1 * h2; |h1 - h2|]`` from the states of both texts."""
    return [
        helper.make_node("Split", ["encoded"], ["one_text", "other_text"], axis=0, num_outputs=2),
        helper.make_node("Mul", ["one_text", "other_text"], ["product"]),
        helper.make_node("Sub", ["one_text", "other_text"], ["difference"]),
        helper.make_node("Abs", ["difference"], ["distance"]),
        helper.make_node("Concat", ["one_text", "other_text", "product", "distance"], ["state"], axis=1),
    ]


def _array(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().cpu())


def _both_directions(model: BiLSTMForSequenceClassification, name: str, hidden: int) -> np.ndarray:
    """Return ``[2, 4 * hidden, ...]``. torch orders the gates input, forget, cell, output; ONNX i, o, f, c."""
    stacked = []
    for suffix in ("_l0", "_l0_reverse"):
        inward, forget, cell, outward = np.split(_array(getattr(model.lstm, name + suffix)), 4)
        stacked.append(np.concatenate([inward, outward, forget, cell]))
    return np.stack(stacked)
