"""Static int8: ranges are known beforehand, from training or from calibration, and none is measured while it runs.

Zafrir et al. 2019, "Q8BERT" (arXiv:1910.06188). Every product with a weight gets a ``QuantizeLinear`` on its input, by
the range that the model was trained for, and symmetric int8 weights: ONNX Runtime's ``MatMulIntegerToFloat``.
Embeddings are int8 tables with one scale. Residual sums, attention, softmax, layer norm and GELU stay in float32, as
they were in training. (ONNX Runtime's own ``quantize_static`` would round the residual sums.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compress.errors import CompressError
from compress.exporting.onnx_graph import clean, layer_of, layers_to_keep, module_of, write_graph
from compress.models.integer_rounding import symmetric_int8

WRITES = "onnx"
CANDIDATES: tuple[dict[str, bool], ...] = ({},)
# Symmetric all the same: 128 stands for zero. ONNX Runtime's kernels for x86 want unsigned inputs.
_ZERO, _ZERO_NAME = 128, "inputs.zero"


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
    weights = {
        tensor.name: tensor
        for tensor in model.graph.initializer
        if len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT
    }
    kept = layers_to_keep(model, keep_fp32)
    writer = _Writer(ranges, per_channel)
    for node in list(model.graph.node):
        if node.op_type == "Gather" and node.input[0] in weights:
            writer.table(node, weights[node.input[0]])
        elif node.op_type in {"MatMul", "Gemm"} and node.input[1] in weights and layer_of(node) not in kept:
            writer.product(node, weights[node.input[1]])
        else:
            writer.nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(writer.nodes)
    constants = writer.constants.items()
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants)
    write_graph(clean(model), target)


@dataclass
class _Writer:
    """Collects the nodes and new constants of the graph; what several nodes share is written once."""

    ranges: Mapping[str, float]
    per_channel: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray | np.generic] = field(default_factory=dict)

    def table(self, node: onnx.NodeProto, table: onnx.TensorProto) -> None:
        """Write ``DequantizeLinear(Gather(int8 table, ids))``."""
        integers, scale = symmetric_int8(numpy_helper.to_array(table), axis=None)
        name, output = table.name, node.output[0]
        self._add_constants(name, integers, scale, np.int8(0))
        self.nodes += [
            helper.make_node("Gather", [f"{name}.int8", node.input[1]], [f"{output}.int8"], name=f"{node.name}.int8"),
            helper.make_node(
                "DequantizeLinear", [f"{output}.int8", f"{name}.scale", f"{name}.zero"], [output], name=node.name
            ),
        ]

    def product(self, node: onnx.NodeProto, weight: onnx.TensorProto) -> None:
        """Write one integer product of rounded input and rounded weight, plus the bias of a ``Gemm``.

        Of a pair of ``DequantizeLinear`` and a product, the runtime would join product and bias before it looks for
        such pairs, and then compute in float32.
        """
        matrix = numpy_helper.to_array(weight)
        if node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute):
            matrix = np.ascontiguousarray(matrix.T)
        constants = weight.name  # several nodes share the weights of a shared layer
        integers, scale = symmetric_int8(matrix, axis=0 if self.per_channel else None)
        self._add_constants(constants, integers, scale, np.zeros(scale.shape, dtype=np.int8))
        rounded, step = self._rounded(node)
        inputs = [rounded, f"{constants}.int8", step, f"{constants}.scale", _ZERO_NAME, f"{constants}.zero"]
        inputs += node.input[2:]
        fused = helper.make_node("MatMulIntegerToFloat", inputs, node.output, name=node.name, domain="com.microsoft")
        self.nodes.append(fused)

    def _rounded(self, node: onnx.NodeProto) -> tuple[str, str]:
        """Return the names of the rounded input of a product and of its scale."""
        module = module_of(node)
        if not module:
            raise CompressError(
                "onnx-qdq needs a graph whose nodes are named after torch modules, and this one is of a small student "
                "(bilstm, cnn, ngram), or was exported elsewhere or by an older version; use --method onnx-dynamic, or "
                "export the transformer again"
            )
        if module not in self.ranges:
            raise CompressError(
                f"the ranges do not fit this graph: there is none for {module!r}; measure them anew with --train FILE"
            )
        scale = np.float32(self.ranges[module] / 127)
        name = f"{node.input[0]}.by.{scale:.9g}"  # query, key and value read the same input by the same range
        self.constants.setdefault(_ZERO_NAME, np.uint8(_ZERO))
        if f"{name}.scale" not in self.constants:
            self.constants[f"{name}.scale"] = scale
            self.nodes.append(
                helper.make_node(
                    "QuantizeLinear",
                    [node.input[0], f"{name}.scale", _ZERO_NAME],
                    [f"{name}.uint8"],
                    name=f"{name}.quantize",
                )
            )
        return f"{name}.uint8", f"{name}.scale"

    def _add_constants(self, name: str, integers: np.ndarray, scale: np.ndarray, zero: np.ndarray | np.int8) -> None:
        for suffix, value in (("int8", integers), ("scale", scale), ("zero", zero)):
            self.constants.setdefault(f"{name}.{suffix}", value)
