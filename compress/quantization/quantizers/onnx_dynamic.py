"""Dynamic int8: weights are quantized now and per output channel, activations while the model runs.

Zafrir et al. 2019, "Q8BERT" (arXiv:1910.06188), without its training; the arithmetic is that of ONNX Runtime's
``quantize_dynamic``. Matrix products and the LSTM compute in int8. Embeddings are stored as int8 with one scale a
row and become float32 where they are read: that makes the file smaller, not the model faster. The tables of
``cnn`` and ``ngram`` are scaled by feature when they are written and rounded here; their rows are added up as integers.
Attention, layer norms and the last layer stay in float32. No calibration data is needed.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compress.errors import CompressError
from compress.exporting.onnx_graph import (
    SCALED_TABLE,
    SMALL_PRODUCT,
    ZERO_OR_ONE,
    clean,
    layer_of,
    layers_to_keep,
    quiet,
    write_graph,
)
from compress.models.integer_rounding import symmetric_int8

WRITES = "onnx"
# Without VNNI, products of 8 bits can saturate and are no faster than those of 7.
CANDIDATES: tuple[dict[str, bool], ...] = ({}, {"reduce_range": True})
EMBEDDINGS = ("int8", "float16", "float32")
# Smaller tables (segments, for example) are not worth the two extra nodes.
_SMALLEST_TABLE_ROWS = 64


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
        reduce_range: 7 instead of 8 bits, for x86 processors without VNNI, whose int8 products can saturate.
        embeddings: how embedding tables are stored: ``int8``, ``float16`` or ``float32``.
        last_layer: quantize the layer that gives the logits as well; it is small, and its errors reach them whole.
        keep_fp32: encoder layers, counted from 0, that stay as they are.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(source))
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"  # quantize_dynamic finds nodes by name
    if embeddings not in EMBEDDINGS:
        raise CompressError(f"embeddings = {embeddings!r} is not known; use {', '.join(EMBEDDINGS)}")
    if embeddings != "float32":
        _quantize_tables(model, embeddings)
    excluded = [] if last_layer else _last_layer(model)
    kept = layers_to_keep(model, keep_fp32)
    excluded += [n.name for n in model.graph.node if layer_of(n) in kept or n.name.startswith(SMALL_PRODUCT)]
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


def _quantize_tables(model: onnx.ModelProto, kind: str) -> None:
    """Replace ``Gather(table, ids)`` by that of a smaller table, cast and (int8) times ``Gather(scales, ids)``.

    What is read of a scaled table in int8 needs no scales, and is cast where it has to be.
    """
    graph = model.graph
    tables = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.name.startswith(SCALED_TABLE)
        or (len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT and tensor.dims[0] >= _SMALLEST_TABLE_ROWS)
    }
    smaller: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    integers: set[str] = set()
    for node in graph.node:
        if node.op_type != "Gather" or node.input[0] not in tables:
            nodes.append(node)
            continue
        name, ids, output = node.input[0], node.input[1], node.output[0]
        table = numpy_helper.to_array(tables[name])
        has_scales = kind == "int8" and not name.startswith(SCALED_TABLE)
        if has_scales:
            smaller[f"{name}.{kind}"], smaller[f"{name}.scales"] = symmetric_int8(table, axis=1, keepdims=True)
        else:
            smaller[f"{name}.{kind}"] = np.rint(table).astype(np.int8) if kind == "int8" else table.astype(np.float16)
        if kind == "int8" and not has_scales:
            integers.add(output)
            nodes.append(helper.make_node("Gather", [f"{name}.{kind}", ids], [output], name=node.name))
            continue
        floats = f"{output}.float" if has_scales else output
        nodes += [
            helper.make_node("Gather", [f"{name}.{kind}", ids], [f"{output}.{kind}"], name=f"{node.name}.{kind}"),
            helper.make_node("Cast", [f"{output}.{kind}"], [floats], name=f"{node.name}.float", to=TensorProto.FLOAT),
        ]
        if has_scales:
            nodes += [
                helper.make_node("Gather", [f"{name}.scales", ids], [f"{output}.scales"], name=f"{node.name}.scales"),
                helper.make_node("Mul", [floats, f"{output}.scales"], [output], name=node.name),
            ]
    del graph.node[:]
    graph.node.extend(_with_casts(nodes, integers))
    graph.initializer.extend(numpy_helper.from_array(one, name) for name, one in smaller.items())
    clean(model)


def _with_casts(nodes: list[onnx.NodeProto], integers: set[str]) -> list[onnx.NodeProto]:
    """Cast ``integers`` to float32 where they have to be: not to reshape, for a maximum or a product with 0 and 1."""
    casts = {node.output[0]: node for node in nodes if node.op_type == "Cast"}
    found: list[onnx.NodeProto] = []
    cast: set[str] = set()
    for node in nodes:
        read = [name for name in node.input if name in integers]
        first = node.input[0] if node.input else ""
        if read and node.op_type == "MatMul" and first.startswith(ZERO_OR_ONE):
            node.op_type, casts[first].attribute[0].i = "MatMulInteger", TensorProto.UINT8
            integers.add(node.output[0])
        elif read and node.op_type in {"Reshape", "ReduceMax"}:
            integers.add(node.output[0])
        else:
            for position, name in enumerate(node.input):
                if name in read:
                    node.input[position] = f"{name}.float"
            wanted = set(read) - cast
            found += [helper.make_node("Cast", [name], [f"{name}.float"], to=TensorProto.FLOAT) for name in wanted]
            cast |= wanted
        found.append(node)
    return found


def _last_layer(model: onnx.ModelProto) -> list[str]:
    """Return the names that the product which gives the logits can have."""
    producers = {output: node for node in model.graph.node for output in node.output}
    node = producers[model.graph.output[0].name]
    while node.op_type not in {"MatMul", "Gemm"}:
        node = producers[node.input[0]]
    return [node.name, f"{node.name}_MatMul"]  # quantize_dynamic renames a Gemm that it splits
