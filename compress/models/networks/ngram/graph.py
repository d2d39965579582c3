"""The graph of the n-gram student, node by node: one convolution hashes all n-grams, one lookup reads all vectors,
and one product with what is text adds them up.

The state is linear in the vectors, so that every column is scaled to the range of int8 and the next layer's weights
undo it (:mod:`compress.quantization.quantizers.onnx_dynamic`).
"""

import numpy as np
from onnx import ModelProto, TensorProto, helper

from compress.models.networks.ngram.model import NGramForSequenceClassification, multipliers
from compress.models.networks.small_graph import (
    SCALED_TABLE,
    TABLE_LIMIT,
    ZERO_OR_ONE,
    array,
    small_graph,
    text_ids,
    undo_scales,
)


def graph(model: NGramForSequenceClassification) -> ModelProto:
    """Return the model's graph (:func:`compress.models.networks.small_graph.small_graph`).

    ``rows`` ``[B, N * T]`` are what a text reads of the table, for n-grams of 1 to N tokens from each of T. Those that
    begin beyond the text are read too, and count 0 times.
    """
    config = model.config
    longest = config.longest
    factors = multipliers(config.tokenizer_size, longest)
    table = np.concatenate(
        [
            array(model.embedding.weight)[array(model.remap)],
            array(model.ngrams.weight),
        ]
    )
    largest = np.abs(table).max(axis=0)
    scales = np.where(largest > 0, largest / TABLE_LIMIT, 1)
    sizes = [config.tokenizer_size, *[config.buckets] * (longest - 1)]
    weights: dict[str, np.ndarray] = {
        f"{SCALED_TABLE}ngrams": (table / scales).astype(np.float32),
        "factors": np.array([factors[:n] + [0] * (longest - n) for n in range(1, longest + 1)], np.float32)[:, None],
        "buckets": np.array(sizes, dtype=np.float32)[:, None],
        "first_rows": np.cumsum([0, *sizes[:-1]], dtype=np.int64)[:, None],
        "flat": np.array([0, -1], dtype=np.int64),
    }
    siamese = config.pairs == "siamese"
    mask = "mask" if siamese else "attention_mask"
    nodes = [
        *([helper.make_node("Cast", ["is_text"], ["mask"], to=TensorProto.INT64)] if siamese else ()),
        helper.make_node("Mul", [text_ids(config), mask], ["known_ids"]),
        helper.make_node("Unsqueeze", ["known_ids", "one"], ["ids"]),
        helper.make_node("Cast", ["ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["numbers", "factors"], ["codes"], pads=[0, longest - 1]),
        helper.make_node("Mod", ["codes", "buckets"], ["hashes"], fmod=1),
        helper.make_node("Cast", ["hashes"], ["places"], to=TensorProto.INT64),
        helper.make_node("Add", ["places", "first_rows"], ["all_rows"]),
        helper.make_node("Reshape", ["all_rows", "flat"], ["rows"]),
        helper.make_node("Concat", [mask] * longest, ["all_in_text"], axis=1),
        helper.make_node("Unsqueeze", ["all_in_text", "one"], ["in_text"]),
        helper.make_node("Cast", ["in_text"], [f"{ZERO_OR_ONE}in_text"], to=TensorProto.FLOAT),
        helper.make_node("Gather", [f"{SCALED_TABLE}ngrams", "rows"], ["vectors"]),
        helper.make_node("MatMul", [f"{ZERO_OR_ONE}in_text", "vectors"], ["sums"]),
        helper.make_node("Squeeze", ["sums", "one"], ["encoded"]),
    ]
    if config.pooling == "mean":
        nodes[-1].output[0] = "total"
        nodes += [
            helper.make_node("Cast", ["sizes"], ["sizes.float"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["sizes.float", "one"], ["sizes.column"]),
            helper.make_node("Div", ["total", "sizes.column"], ["encoded"]),
        ]
    undo_scales(model, scales, weights, nodes)
    return small_graph(model, weights, nodes)
