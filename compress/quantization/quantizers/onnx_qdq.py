"""Static int8: ranges are known beforehand, from training or from calibration, and none is measured while it runs.

Zafrir et al. 2019, "Q8BERT" (arXiv:1910.06188). Every product with a weight gets a ``QuantizeLinear`` on its input, by
the range that the model was trained for, and symmetric int8 weights: ONNX Runtime's ``MatMulIntegerToFloat``.
Embeddings are int8 tables with one scale. Residual sums, attention, softmax, layer norm and GELU stay in float32, as
they were in training. (ONNX Runtime's own ``quantize_static`` would round the residual sums.)
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from compress.errors import refuse
from compress.exporting.onnx_graph import layer_of, layers_to_keep, module_of, write_graph
from compress.models.integer_rounding import symmetric_int8
from compress.models.networks import NAMES
from compress.quantization.quantizers._products import IntegerGraph, Rounded

WRITES = "onnx"
CANDIDATES: tuple[dict[str, bool], ...] = ({},)
# Symmetric all the same: 128 stands for zero. ONNX Runtime's kernels for x86 want unsigned inputs.
_ZERO = 128


def quantize(
    source: Path,
    target: Path,
    *,
    ranges: dict[str, float],
    keep_fp32: list[int] | None = None,
    per_channel: bool = False,
) -> None:
    """Read an fp32 graph and write its int8 version.

    Args:
        source, target: ``model.onnx`` files.
        ranges: largest magnitude of the inputs of every linear module, by its name in torch.
        keep_fp32: encoder layers, counted from 0, that stay as they are.
        per_channel: one scale for each output channel instead of one a matrix, for a model that was not trained with
            the latter.

    Raises:
        CompressError: the graph has a product whose module has no range.
    """
    model = onnx.load(str(source))
    kept = layers_to_keep(model, keep_fp32)
    graph = IntegerGraph(model, per_channel)
    rounded: dict[str, Rounded] = {}  # query, key and value read the same input by the same range
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in graph.weights:
            _write_table(graph, node)
        elif graph.multiplies(node) and layer_of(node) not in kept:
            step = _step(node, ranges)
            name = f"{node.input[0]}.by.{step:.9g}"
            if name not in rounded:
                zero = graph.constant("inputs.zero", np.uint8(_ZERO))
                scale = graph.constant(f"{name}.scale", step)
                numbers = graph.add("QuantizeLinear", [node.input[0], scale, zero], f"{name}.uint8")
                rounded[name] = Rounded(numbers, zero, scale)
            graph.product(node, rounded[name])
        else:
            graph.nodes.append(node)
    write_graph(graph.written(), target)


def _write_table(graph: IntegerGraph, node: onnx.NodeProto) -> None:
    """Write ``DequantizeLinear(Gather(int8 table, ids))``."""
    name, output = node.input[0], node.output[0]
    integers, step = symmetric_int8(numpy_helper.to_array(graph.weights[name]), axis=None)
    scale, zero = graph.constant(f"{name}.scale", step), graph.constant(f"{name}.zero", np.int8(0))
    numbers = graph.add("Gather", [graph.constant(f"{name}.int8", integers), node.input[1]], f"{output}.int8")
    graph.add("DequantizeLinear", [numbers, scale, zero], output)


def _step(node: onnx.NodeProto, ranges: Mapping[str, float]) -> np.float32:
    """Return the step by which the input of a product is rounded: that of the range of its module."""
    module = module_of(node)
    refuse(
        (
            not module,
            "onnx-qdq needs a graph whose nodes are named after torch modules, and this one is of a small student "
            f"({', '.join(NAMES)}), or was exported elsewhere or by an older version; use --method onnx-dynamic, or "
            "export the transformer again",
        ),
        (
            module not in ranges,
            f"the ranges do not fit this graph: there is none for {module!r}; measure them anew with --train FILE",
        ),
    )
    return np.float32(ranges[module] / 127)
