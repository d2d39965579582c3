"""The graph of a small student, node by node: what all of them share around the layers of one.

Shapes in names of inputs and outputs: ``kept_ids`` ``[B, T]`` (of a siamese student ``[2B, T]``, all first texts before
all second ones) are rows of the embedding, ``sizes`` ``[B]`` the tokens of each text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from compress.models.networks.small import SmallModel

OPSET = 20
# How the name of a table begins whose columns are within its limit on either side, so that int8 needs no scales.
SCALED_TABLE, TABLE_LIMIT = "scaled_table.", 127
# How the name of a cast begins that makes float32 of zeros and ones, of which int8 makes integers.
ZERO_OR_ONE = "zero_or_one."
# How the name of a matrix product begins that is so small that int8 would make it slower.
SMALL_PRODUCT = "small_product."
# The name of the graph's property that holds the network's config, as JSON.
NETWORK = "compress.network"
# The numbers of poolings in a native container.
POOLING = {"mean": 1, "sum": 2, "max": 3, "max-mean": 4}
LARGEST_INT16 = 2**15 - 1
# The newest file format that the ONNX Runtime of three years ago reads.
_IR_VERSION = 9
_INPUTS = ("input_ids", "attention_mask")


def small_graph(model: SmallModel, weights: Mapping[str, np.ndarray], layers: Sequence[NodeProto]) -> onnx.ModelProto:
    """Return a graph: inputs int64 ``[batch, length]``, output ``logits`` ``[batch, C]``, or ``[batch, length, C]``.

    Args:
        weights: of ``layers``, which make ``encoded`` (states of texts, or of a tagger's tokens) from ``kept_ids`` and
            ``sizes``; ``dense.weight`` ``[S, D]`` among them replaces the model's own.
    """
    config: Any = model.config
    siamese = config.pairs == "siamese"
    every = {
        "remap": array(model.remap).astype(np.int32),
        "dense.weight": array(model.dense.weight.T),
        "dense.bias": array(model.dense.bias),
        "classifier.weight": array(model.classifier.weight.T),
        "classifier.bias": array(model.classifier.bias),
        "one": np.array([1], dtype=np.int64),
        **weights,
    }
    if siamese:
        numbers = {"zero": 0, "step": 1, "rows_only": [0], "separator": config.separator_token_id}
        numbers |= zip(("before", "between", "after"), config.special_tokens, strict=True)
        numbers["padding"] = getattr(config, "pad_token_id", None) or 0
        every |= {name: np.array(number, dtype=np.int64) for name, number in numbers.items()}
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["row_sums"], keepdims=0),
        *(_split_nodes() if siamese else ()),
        helper.make_node("Max", ["text_sizes" if siamese else "row_sums", "one"], ["sizes"]),
        helper.make_node("Gather", ["remap", text_ids(config)], ["kept_ids"]),
        *layers,
        *(_comparison_nodes() if siamese else ()),
        helper.make_node(
            "MatMul",
            ["state" if siamese else "encoded", "dense.weight"],
            ["dense.product"],
            name=f"{SMALL_PRODUCT}dense",
        ),
        helper.make_node("Add", ["dense.product", "dense.bias"], ["dense.sum"]),
        helper.make_node("Relu", ["dense.sum"], ["dense"]),
        helper.make_node("MatMul", ["dense", "classifier.weight"], ["classifier.product"]),
        helper.make_node("Add", ["classifier.product", "classifier.bias"], ["logits"]),
    ]
    read = {"logits"}
    for node in reversed(nodes):  # the first ones are made for all networks, whatever they read
        read.update(node.input if read.intersection(node.output) else ())
    nodes = [node for node in nodes if read.intersection(node.output)]
    tokens = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in _INPUTS]
    shape = ["batch", *(["length"] if model.tags else []), config.num_labels]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
    initializers = [
        numpy_helper.from_array(np.ascontiguousarray(one), name) for name, one in every.items() if name in read
    ]
    graph = helper.make_graph(nodes, config.model_type, tokens, [logits], initializers)
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="compress", ir_version=_IR_VERSION
    )
    helper.set_model_props(proto, {NETWORK: config.to_json_string(use_diff=False)})
    onnx.checker.check_model(proto)
    return proto


def text_ids(config: Any) -> str:
    """Return the name of the ids that layers read: of whole rows, or of all first and then all second texts."""
    return "texts" if config.pairs == "siamese" else "input_ids"


def undo_scales(model: SmallModel, scales: np.ndarray, weights: dict[str, np.ndarray], layers: list[NodeProto]) -> None:
    """Let layers whose states ``[S]`` are divided by ``scales`` be as if they were not, in place.

    The next layer's weights do it. Siamese, products of two states would be divided twice, so that a node does it.
    """
    if model.config.pairs == "siamese":
        layers[-1].output[0] = "scaled"
        layers.append(helper.make_node("Mul", ["scaled", "scales"], ["encoded"]))
        weights["scales"] = scales.astype(np.float32)
    else:
        weights["dense.weight"] = (array(model.dense.weight.T) * scales[:, None]).astype(np.float32)


def in_pairs(weights: np.ndarray) -> np.ndarray:
    """Return whole weights ``[S, D]`` as the native library multiplies int16: ``[ceil(S / 2), D, 2]``."""
    padded = np.pad(weights, ((0, len(weights) % 2), (0, 0))).astype(np.int16)
    return padded.reshape(-1, 2, weights.shape[1]).swapaxes(1, 2)


def array(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().cpu())


def _split_nodes() -> list[NodeProto]:
    """Make ``texts`` ``[2 * batch, length]`` and ``text_sizes`` ``[2 * batch]`` as the model's ``_split`` does."""
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
        helper.make_node("Squeeze", ["row_sizes", "one"], ["text_sizes"]),
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
