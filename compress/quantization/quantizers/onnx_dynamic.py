"""Dynamic int8: weights are quantized now and per output channel, activations while the model runs.

Zafrir et al. 2019, "Q8BERT" (arXiv:1910.06188), without its training; the arithmetic is that of ONNX Runtime's
``quantize_dynamic``. Matrix products and the LSTM compute in int8. Embeddings are stored as int8 with one scale a
row and become float32 where they are read: that makes the file smaller, not the model faster. Attention, layer norms
and the last layer stay in float32. No calibration data is needed.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compress.exporting.onnx_graph import clean, layer_of, quiet, write_graph

WRITES = "onnx"
# Smaller tables (segments, for example) are not worth the two extra nodes.
_SMALLEST_TABLE_ROWS = 64


def quantize(
    source: Path,
    target: Path,
    *,
    per_channel: bool = True,
    reduce_range: bool = False,
    embeddings: bool = True,
    last_layer: bool = False,
    keep_fp32: list[int] | None = None,
) -> None:
    """Read an fp32 graph and write its int8 version.

    Args:
        source, target: ``model.onnx`` files.
        per_channel: one scale for each output channel instead of one a matrix; without it accuracy suffers.
        reduce_range: 7 instead of 8 bits, for x86 processors without VNNI, whose int8 products can saturate.
        embeddings: store the embedding tables as int8 too.
        last_layer: quantize the layer that gives the logits as well; it is small, and its errors reach them whole.
        keep_fp32: encoder layers, counted from 0, that stay as they are.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(source))
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"  # quantize_dynamic finds nodes by name
    if embeddings:
        _quantize_tables(model)
    excluded = [] if last_layer else _last_layer(model)
    excluded += [node.name for node in model.graph.node if layer_of(node) in set(keep_fp32 or ())]
    with quiet():  # it advises to preprocess the graph, which has been fused already
        quantize_dynamic(
            model,
            str(target),
            op_types_to_quantize=["MatMul", "Gemm", "LSTM"],
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=excluded,
            # Shapes of fused nodes cannot be inferred; everything that is quantized here is float32.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
    write_graph(clean(onnx.load(str(target))), target)


def _quantize_tables(model: onnx.ModelProto) -> None:
    """Replace ``Gather(table, ids)`` by ``Cast(Gather(int8 table, ids)) * Gather(scales, ids)``, in place."""
    graph = model.graph
    tables = {
        tensor.name: tensor
        for tensor in graph.initializer
        if len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT and tensor.dims[0] >= _SMALLEST_TABLE_ROWS
    }
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Gather" or node.input[0] not in tables:
            nodes.append(node)
            continue
        name, ids, output = node.input[0], node.input[1], node.output[0]
        integers, scales = _quantize_rows(numpy_helper.to_array(tables[name]))
        graph.initializer.append(numpy_helper.from_array(integers, f"{name}.int8"))
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}.scales"))
        nodes += [
            helper.make_node("Gather", [f"{name}.int8", ids], [f"{output}.int8"], name=f"{node.name}.int8"),
            helper.make_node("Gather", [f"{name}.scales", ids], [f"{output}.scales"], name=f"{node.name}.scales"),
            helper.make_node("Cast", [f"{output}.int8"], [f"{output}.float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{output}.float", f"{output}.scales"], [output], name=node.name),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    clean(model)


def _quantize_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 ``[V, E]`` and float32 scales ``[V, 1]`` whose product is the table, within half a step."""
    scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), np.finfo(np.float32).tiny * 127) / 127
    return np.rint(table / scales).astype(np.int8), scales.astype(np.float32)


def _last_layer(model: onnx.ModelProto) -> list[str]:
    """Return the names that the product which gives the logits can have."""
    producers = {output: node for node in model.graph.node for output in node.output}
    node = producers[model.graph.output[0].name]
    while node.op_type not in {"MatMul", "Gemm"}:
        node = producers[node.input[0]]
    return [node.name, f"{node.name}_MatMul"]  # quantize_dynamic renames a Gemm that it splits
