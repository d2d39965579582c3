"""The graph of the convolutional student, node by node, with its first layer folded into a table.

That layer is linear in the embeddings, so that embedding and weights multiply into a table with a row for each token
at each place of a window (Devlin et al. 2014, "Fast and Robust Neural Network Joint Models for Statistical Machine
Translation", section 4): a lookup and an addition are all that is left of it. The rows to look up come from one
convolution over the ids, in float32, which is exact below 2^24; a product with ones adds them up, which in int8 is an
integer one.

A ReLU lets positive factors through. Every feature is therefore scaled to the range of int8 and the next layer's
weights undo it, so that rounding the table is all that makes it int8
(:mod:`compress.quantization.quantizers.onnx_dynamic`).
"""

import numpy as np
from onnx import ModelProto, TensorProto, helper

from compress.errors import refuse
from compress.models.networks.cnn.model import CNNForSequenceClassification, offsets_of
from compress.models.networks.small_graph import (
    SCALED_TABLE,
    TABLE_LIMIT,
    ZERO_OR_ONE,
    array,
    small_graph,
    text_ids,
    undo_scales,
)

_EXACT = 2**24  # float32 has every whole number below


def graph(model: CNNForSequenceClassification) -> ModelProto:
    """Return the model's graph (:func:`compress.models.networks.small_graph.small_graph`).

    Raises:
        CompressError: the vocabulary is too large for exact places in float32.
    """
    config = model.config
    tables, scales = folded_tables(model)
    offsets = list(tables)
    table = np.stack(list(tables.values()), axis=1).reshape(-1, len(scales))  # [vocabulary * offsets, features]
    too_many = len(table) >= _EXACT
    refuse((too_many, f"{config.vocab_size:,} tokens at {len(offsets)} places are more rows than {_EXACT:,}"))
    kernel = np.zeros((len(offsets), 1, offsets[-1] - offsets[0] + 1), dtype=np.float32)
    for place, offset in enumerate(offsets):
        kernel[place, 0, offset - offsets[0]] = len(offsets)
    weights: dict[str, np.ndarray] = {
        f"{SCALED_TABLE}windows": table,
        "token.numbers": (array(model.remap) + 1).astype(np.float32),  # 0 is what is beyond the text
        "places.kernel": kernel,
        "places.bias": np.arange(len(offsets), dtype=np.float32),
        "window.ones": np.ones((1, len(offsets)), dtype=np.uint8),
        "window.rows": np.array([0, len(offsets), -1], dtype=np.int64),
        "window.features": np.array([0, -1, len(scales)], dtype=np.int64),
    }
    mask = "is_text" if config.pairs == "siamese" else "attention_mask"
    nodes = [
        helper.make_node("Cast", [mask], ["in_text"], to=TensorProto.FLOAT),
        helper.make_node("Gather", ["token.numbers", text_ids(config)], ["numbers"]),
        helper.make_node("Mul", ["numbers", "in_text"], ["known"]),
        helper.make_node("Unsqueeze", ["known", "one"], ["known.row"]),
        helper.make_node(
            "Conv", ["known.row", "places.kernel", "places.bias"], ["places"], pads=[-offsets[0], offsets[-1]]
        ),
        # Windows of places beyond the text hold nothing, also where they reach back to its last tokens.
        helper.make_node("Unsqueeze", ["in_text", "one"], ["in_text.row"]),
        helper.make_node("Mul", ["places", "in_text.row"], ["places.known"]),
        helper.make_node("Cast", ["places.known"], ["rows"], to=TensorProto.INT32),
        helper.make_node("Gather", [f"{SCALED_TABLE}windows", "rows"], ["products"]),
        helper.make_node("Reshape", ["products", "window.rows"], ["products.flat"]),
        helper.make_node("Cast", ["window.ones"], [f"{ZERO_OR_ONE}window"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", [f"{ZERO_OR_ONE}window", "products.flat"], ["sums.flat"]),
        helper.make_node("Reshape", ["sums.flat", "window.features"], ["sums"]),
    ]
    sums = "sums"
    if config.second_filters:
        width = config.second_width
        places = offsets_of(width)
        blocks = np.split(array(model.second.weight).astype(np.float64), width)
        weights |= {
            "features.padding": np.array([-places[0], places[-1]], dtype=np.int64),
            "features.axis": np.array([2], dtype=np.int64),
            "zero.feature": np.array(0, dtype=np.float32),
            "second.weight": np.concatenate([(block * scales).T for block in blocks]).astype(np.float32),
            "second.bias": array(model.second_bias),
        }
        nodes += [
            helper.make_node("Relu", ["sums"], ["features"]),
            helper.make_node("Cast", [mask], ["has_text"], to=TensorProto.BOOL),
            helper.make_node("Pad", ["features", "features.padding", "", "one"], ["features.padded"]),
        ]
        windows = [f"features.{offset}" for offset in places]
        for start, window in enumerate(windows):  # a view of the padded features, moved by the offset
            end = start - width + 1 or np.iinfo(np.int64).max
            weights |= {f"place.{place}": np.array([place], dtype=np.int64) for place in (start, end)}
            slicing = ["features.padded", f"place.{start}", f"place.{end}", "one"]
            nodes.append(helper.make_node("Slice", slicing, [window]))
        nodes += [
            helper.make_node("Concat", windows, ["windows"], axis=2),
            helper.make_node("MatMul", ["windows", "second.weight"], ["second.product"]),
            helper.make_node("Add", ["second.product", "second.bias"], ["second.sums"]),
            helper.make_node("Unsqueeze", ["has_text", "features.axis"], ["has_features"]),
            helper.make_node("Where", ["has_features", "second.sums", "zero.feature"], ["text.sums"]),
        ]
        sums, scales = "text.sums", np.ones(config.second_filters)
    # Beyond the text sums are 0, and after a ReLU nothing is below: the padding is neither the highest nor in the mean.
    if model.tags:
        nodes.append(helper.make_node("Relu", [sums], ["encoded"]))
    else:
        mean = config.pooling == "max-mean"
        nodes.append(helper.make_node("ReduceMax", [sums, "one"], ["highest_sums"], keepdims=0))
        nodes.append(helper.make_node("Relu", ["highest_sums"], ["highest" if mean else "encoded"]))
        if mean:
            nodes += [
                helper.make_node("Relu", [sums], ["activations"]),
                helper.make_node("ReduceSum", ["activations", "one"], ["total"], keepdims=0),
                helper.make_node("Cast", ["sizes"], ["sizes.float"], to=TensorProto.FLOAT),
                helper.make_node("Unsqueeze", ["sizes.float", "one"], ["sizes.column"]),
                helper.make_node("Div", ["total", "sizes.column"], ["mean"]),
                helper.make_node("Concat", ["highest", "mean"], ["encoded"], axis=1),
            ]
            scales = np.tile(scales, 2)
    undo_scales(model, scales, weights, nodes)
    return small_graph(model, weights, nodes)


def folded_tables(model: CNNForSequenceClassification) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Return for each place of a window a table ``[vocab_size + 1, features]``, and what to multiply features by.

    The first row, of zeros, is what is beyond the text. The bias is in the table of a window's own token, which every
    window has.
    """
    widths = model.config.widths
    embedding = array(model.embedding.weight).astype(np.float64)
    parts = iter(np.split(array(model.first.weight).astype(np.float64), sum(widths)))
    tables: dict[int, np.ndarray] = {}
    for number, width in enumerate(widths):
        columns = slice(number * model.config.filters, (number + 1) * model.config.filters)
        for offset in offsets_of(width):
            empty = np.zeros((len(embedding) + 1, len(widths) * model.config.filters))
            tables.setdefault(offset, empty)[1:, columns] = embedding @ next(parts).T
    tables[0][1:] += array(model.first_bias)
    largest = np.max([np.abs(table).max(axis=0) for table in tables.values()], axis=0)
    scales = np.where(largest > 0, largest / TABLE_LIMIT, 1)
    return {offset: (table / scales).astype(np.float32) for offset, table in sorted(tables.items())}, scales
