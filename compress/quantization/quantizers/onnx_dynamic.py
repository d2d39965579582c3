"""Dynamic int8: weights are quantized now and per output channel, activations while the model runs, each row by itself.

Zafrir et al. 2019, "Q8BERT" (arXiv:1910.06188), without its training. Matrix products and the LSTM compute in int8.
Embeddings are stored as int8 with one scale a row and become float32 where they are read: that makes the file smaller,
not the model faster. The tables of small networks are scaled by feature when they are written and rounded here; where
rows are only added up, that is done with integers. Attention, layer norms and the last layer stay in float32. No
calibration data is needed.

The logits of a text do not depend on the other texts of its batch. ONNX Runtime's ``quantize_dynamic`` takes one range
for all numbers of a batch: of 872 sentences, 17 had another label alone than in batches of 32. Here

* each row of a product's input, the vector of a token, has its own range: ``x / max|x|`` is rounded to 127 steps on
  either side, as in Yao et al. 2022, "ZeroQuant" (arXiv:2206.01861), section 4.2 (token-wise quantization);
* the range of an LSTM is the same for all inputs. That of the table is in two columns of it, and two units whose gates
  are open have the largest states that are possible (:func:`_write_lstm`).
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compress.errors import refuse
from compress.exporting.onnx_graph import layer_of, layers_to_keep, write_graph
from compress.models.integer_rounding import symmetric_int8
from compress.models.networks.small_graph import SCALED_TABLE, SMALL_PRODUCT, ZERO_OR_ONE
from compress.quantization.quantizers._products import CONTRIBUTED, IntegerGraph, Rounded

WRITES = "onnx"
# Without VNNI, products of 8 bits can saturate and are no faster than those of 7.
CANDIDATES: tuple[dict[str, bool], ...] = ({}, {"reduce_range": True})
EMBEDDINGS = ("int8", "float16", "float32")
# Smaller tables (segments, for example) are not worth the two extra nodes.
_SMALLEST_TABLE_ROWS = 64
# Operators whose results are among the numbers that they read, or 0.
_SELECTS = {"Concat", "Gather", "GatherND", "Pad", "Reshape", "Slice", "Transpose", "ReduceMax"}
_LOWEST = {"Relu": 0.0, "Gelu": -0.17005}
_OPEN = 50.0  # the bias of a gate for which sigmoid and tanh are 1 in float32


def quantize(
    source: Path,
    target: Path,
    *,
    per_channel: bool = True,
    reduce_range: bool = False,
    embeddings: str = "int8",
    last_layer: bool = False,
    keep_fp32: list[int] | None = None,
) -> None:
    """Read an fp32 graph and write its int8 version.

    Args:
        source, target: ``model.onnx`` files.
        per_channel: one scale for each output channel instead of one a matrix; without it accuracy suffers.
        reduce_range: weights of 7 instead of 8 bits, for x86 processors without VNNI, whose int8 products can saturate.
        embeddings: how embedding tables are stored: ``int8``, ``float16`` or ``float32``.
        last_layer: quantize the layer that gives the logits as well; it is small, and its errors reach them whole.
        keep_fp32: encoder layers, counted from 0, that stay as they are.
    """
    refuse((embeddings not in EMBEDDINGS, f"embeddings = {embeddings!r} is not known; use {', '.join(EMBEDDINGS)}"))
    model = onnx.load(str(source))
    kept = layers_to_keep(model, keep_fp32)
    producers = {output: node for node in model.graph.node for output in node.output}
    last = None if last_layer else _last_layer(model, producers)
    graph = IntegerGraph(model, per_channel, bits=7 if reduce_range else 8)
    rounded: dict[str, Rounded] = {}  # query, key and value read the same input
    integers: set[str] = set()  # numbers of scaled tables in int8, which are cast where they have to be
    # Found before nodes read other names.
    ranged = [[*node.output] for node in model.graph.node if _reads_scaled_table(node, producers)]
    for node in model.graph.node:
        if integers.intersection(node.input):
            _read_integers(graph, node, integers, producers)
        if embeddings != "float32" and node.op_type == "Gather" and _is_table(graph, node.input[0]):
            _write_table(graph, node, embeddings, integers)
        elif layer_of(node) in kept or node is last or node.name.startswith(SMALL_PRODUCT):
            graph.nodes.append(node)
        elif graph.multiplies(node):
            read = node.input[0]
            if read not in rounded:
                rounded[read] = _round_rows(graph, read, _lowest(read, producers))
            graph.product(node, rounded[read])
        elif [*node.output] in ranged:
            _write_lstm(graph, node)
        else:
            graph.nodes.append(node)
    write_graph(graph.written(), target)


def _round_rows(graph: IntegerGraph, name: str, lowest: float) -> Rounded:
    """Round every row ``x`` ``[..., K]`` to uint8 by its own range, given a bound of its numbers from below.

    The numbers are ``round(steps * x / r) + zero``, where ``r`` is the largest magnitude and there are 127 steps on
    either side of zero. Where nothing is far below 0, after ReLU and GELU, no steps are wasted there, and ``r`` is the
    largest number. A row of zeros has ``r = 0``, and whatever its numbers become, its products are 0.
    """
    zero = {-np.inf: 128, 0.0: 0}.get(lowest, 32)
    steps = 127 if lowest == -np.inf else 255 - zero
    largest = graph.largest(graph.add("Abs", [name], f"{name}.magnitudes") if lowest == -np.inf else name)
    if lowest not in {-np.inf, 0.0}:
        least = np.float32(-lowest * steps / zero)  # above it the bound is within the steps below zero
        largest = graph.add("Max", [largest, graph.constant(f"least_range.{zero}", least)], f"{name}.range")
    zero_name = graph.constant(f"zero.{zero}", np.uint8(zero))
    step = graph.constant(f"step.{steps}", np.float32(1 / steps))
    factor = graph.add("Reciprocal", [largest], f"{name}.factor")  # dividing whole rows takes twice as long
    within = graph.add("Mul", [name, factor], f"{name}.within_1")
    return Rounded(graph.add("QuantizeLinear", [within, step, zero_name], f"{name}.uint8"), zero_name, step, largest)


def _lowest(name: str, producers: dict[str, onnx.NodeProto]) -> float:
    """Return a lower bound of some numbers of the graph: that of the activation that they come from."""
    node = producers.get(name)
    if node is None:
        return -np.inf
    if node.op_type in _SELECTS:
        read = node.input if node.op_type == "Concat" else node.input[:1]
        return min(_lowest(one, producers) for one in read)
    return _LOWEST.get(node.op_type, -np.inf)


def _reads_scaled_table(node: onnx.NodeProto, producers: dict[str, onnx.NodeProto]) -> bool:
    """Tell whether a node is an LSTM whose inputs are rows of a table whose columns hold their range."""
    before = producers.get(node.input[0]) if node.op_type == "LSTM" else None
    while before is not None and before.op_type in {"Cast", "Transpose"}:
        before = producers.get(before.input[0])
    return before is not None and before.op_type == "Gather" and before.input[0].startswith(SCALED_TABLE)


def _write_lstm(graph: IntegerGraph, node: onnx.NodeProto) -> None:
    """Write a ``DynamicQuantizeLSTM``, whose ranges are the least and the largest of all inputs, and of all states.

    Two units are added, whose gates are open whatever they read: after t tokens their cells are t and -t, and their
    states tanh(t) and -tanh(t). No other state is larger: gates are at most 1, and so is what they let in. These two
    are therefore the range, the same in every batch. They are cut off behind the node.
    """
    hidden = next(a.i for a in node.attribute if a.name == "hidden_size")
    inward, recurrent, bias = (numpy_helper.to_array(graph.weights[name]) for name in node.input[1:4])
    # [directions, 4 gates, H, ...], and two units more.
    inward, recurrent, bias = (
        np.pad(
            array.reshape(len(array), -1, hidden, *array.shape[2:]),
            [(0, 0), (0, 0), (0, 2), *[(0, 0)] * (array.ndim - 2)],
        )
        for array in (inward, recurrent, bias)
    )
    recurrent = np.pad(recurrent, [(0, 0)] * 3 + [(0, 2)])
    bias[:, :4, hidden:] = _OPEN
    bias[:, 3, -1] = -_OPEN  # the gates are input, output, forget, cell
    name = node.output[0] or node.output[1]
    constants: list[str] = []
    scales: list[str] = []
    for array, kind in ((inward, "input"), (recurrent, "recurrent")):
        matrix = array.reshape(len(array), -1, array.shape[-1])  # [directions, 4 H, K]
        integers, steps = symmetric_int8(matrix, axis=2, keepdims=True, bits=graph.bits)
        constants.append(graph.constant(f"{name}.{kind}.int8", np.ascontiguousarray(integers.transpose(0, 2, 1))))
        scales.append(graph.constant(f"{name}.{kind}.scale", steps[..., 0]))
        scales.append(graph.constant(f"{name}.{kind}.zero", np.zeros(steps.shape[:2], np.int8)))
    biases = graph.constant(f"{name}.bias", bias.reshape(len(bias), -1))
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute} | {"hidden_size": hidden + 2}
    outputs = [f"{output}.and_range" if output else "" for output in node.output]
    graph.nodes.append(
        helper.make_node(
            "DynamicQuantizeLSTM",
            [node.input[0], *constants, biases, *node.input[4:5], "", "", "", *scales],
            outputs,
            name=node.name,
            domain=CONTRIBUTED,
            **attributes,
        )
    )
    ends = [
        graph.constant(f"{name}.{key}", np.array([at], np.int64))
        for key, at in (("start", 0), ("end", hidden), ("axis", -1))
    ]
    for whole, output in zip(outputs, node.output, strict=True):
        if output:
            graph.add("Slice", [whole, *ends], output)


def _is_table(graph: IntegerGraph, name: str) -> bool:
    dims: list[int] = getattr(graph.weights.get(name), "dims", [])
    return name.startswith(SCALED_TABLE) or (len(dims) == 2 and dims[0] >= _SMALLEST_TABLE_ROWS)


def _write_table(graph: IntegerGraph, node: onnx.NodeProto, kind: str, integers: set[str]) -> None:
    """Write ``Gather(table, ids)`` of a smaller table, cast and (int8) times ``Gather(scales, ids)``.

    What is read of a scaled table in int8 needs no scales, and is cast where it has to be: it goes to ``integers``.
    """
    name, ids, output = node.input[0], node.input[1], node.output[0]
    table = numpy_helper.to_array(graph.weights[name])
    if kind == "int8" and name.startswith(SCALED_TABLE):
        graph.add("Gather", [graph.constant(f"{name}.int8", np.rint(table).astype(np.int8)), ids], output)
        integers.add(output)
    elif kind == "int8":
        numbers, scales = symmetric_int8(table, axis=1, keepdims=True)
        rows = graph.add("Gather", [graph.constant(f"{name}.int8", numbers), ids], f"{output}.int8")
        floats = graph.add("Cast", [rows], f"{output}.float", to=TensorProto.FLOAT)
        steps = graph.add("Gather", [graph.constant(f"{name}.scales", scales), ids], f"{output}.scales")
        graph.add("Mul", [floats, steps], output)
    else:
        halves = graph.constant(f"{name}.float16", table.astype(np.float16))
        rows = graph.add("Gather", [halves, ids], f"{output}.float16")
        graph.add("Cast", [rows], output, to=TensorProto.FLOAT)


def _read_integers(
    graph: IntegerGraph, node: onnx.NodeProto, integers: set[str], producers: dict[str, onnx.NodeProto]
) -> None:
    """Let a node read ``integers``: as they are to reshape, for a maximum or a product with 0 and 1; else as floats."""
    if node.op_type == "MatMul" and node.input[0].startswith(ZERO_OR_ONE):
        node.op_type, producers[node.input[0]].attribute[0].i = "MatMulInteger", TensorProto.UINT8  # that casts them
        integers.add(node.output[0])
    elif node.op_type in {"Reshape", "ReduceMax"}:
        integers.add(node.output[0])
    else:
        written = {one.output[0] for one in graph.nodes}
        for position, name in enumerate(node.input):
            if name in integers:
                node.input[position] = f"{name}.float"
                if f"{name}.float" not in written:
                    graph.add("Cast", [name], f"{name}.float", to=TensorProto.FLOAT)


def _last_layer(model: onnx.ModelProto, producers: dict[str, onnx.NodeProto]) -> onnx.NodeProto:
    node = producers[model.graph.output[0].name]
    while node.op_type not in {"MatMul", "Gemm"}:
        node = producers[node.input[0]]
    return node
