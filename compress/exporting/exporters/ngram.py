"""The graph of the n-gram student, node by node: one convolution hashes all n-grams, one lookup reads all vectors.

The state is linear in the vectors, so that every column is scaled to the range of int8 and the next layer's weights
undo it (:mod:`compress.quantization.quantizers.onnx_dynamic`).
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from compress.exporting.exporters._small import array, text_ids, undo_scales, write_small_graph
from compress.exporting.onnx_graph import SCALED_TABLE, TABLE_LIMIT
from compress.models.modeling.ngram import NGramConfig, NGramForSequenceClassification, multipliers

MODEL_TYPES = (NGramConfig.model_type,)


def export(model: NGramForSequenceClassification, path: Path) -> None:
    """Write the model's graph (:func:`compress.exporting.exporters._small.write_small_graph`).

    ``rows`` ``[B, N, T]`` are what a text reads of the table, for n-grams of 1 to N tokens from each of T; its first
    row, of zeros, is for places beyond the text.
    """
    config = model.config
    longest = config.longest
    factors = multipliers(config.tokenizer_size, longest)
    table = np.concatenate(
        [
            np.zeros((1, config.embedding_size)),
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
        "first_rows": 1 + np.cumsum([0, *sizes[:-1]], dtype=np.int64)[:, None],
        "of_all_ngrams": np.array([1, 2], dtype=np.int64),
    }
    siamese = config.pairs == "siamese"
    mask = "mask" if siamese else "attention_mask"
    nodes = [
        *([helper.make_node("Cast", ["is_text"], ["mask"], to=TensorProto.INT64)] if siamese else ()),
        helper.make_node("Unsqueeze", [mask, "one"], ["in_text"]),
        helper.make_node("Unsqueeze", [text_ids(config), "one"], ["ids"]),
        helper.make_node("Mul", ["ids", "in_text"], ["known_ids"]),
        helper.make_node("Cast", ["known_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["numbers", "factors"], ["sums"], pads=[0, longest - 1]),
        helper.make_node("Mod", ["sums", "buckets"], ["hashes"], fmod=1),
        helper.make_node("Cast", ["hashes"], ["places"], to=TensorProto.INT64),
        helper.make_node("Add", ["places", "first_rows"], ["all_rows"]),
        helper.make_node("Mul", ["all_rows", "in_text"], ["rows"]),
        helper.make_node("Gather", [f"{SCALED_TABLE}ngrams", "rows"], ["vectors"]),
        helper.make_node("ReduceSum", ["vectors", "of_all_ngrams"], ["encoded"], keepdims=0),
    ]
    if config.pooling == "mean":
        nodes[-1].output[0] = "total"
        nodes += [
            helper.make_node("Cast", ["sizes"], ["sizes.float"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["sizes.float", "one"], ["sizes.column"]),
            helper.make_node("Div", ["total", "sizes.column"], ["encoded"]),
        ]
    undo_scales(model, scales, weights, nodes)
    write_small_graph(model, path, weights, nodes)
