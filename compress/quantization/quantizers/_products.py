"""Integer products of a graph: int8 weights, and inputs that are rounded to uint8."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compress.exporting.onnx_graph import clean
from compress.models.integer_rounding import symmetric_int8

CONTRIBUTED = "com.microsoft"  # the domain of ONNX Runtime's own operators


class Rounded(NamedTuple):
    """Names of a rounded input: its uint8 numbers, the number that stands for zero, and their step.

    With ``row_factors``, ``[..., 1]``, the step of a row is ``step`` times its factor.
    """

    numbers: str
    zero: str
    step: str
    row_factors: str = ""


@dataclass
class IntegerGraph:
    """The nodes and new constants of a graph; what several nodes share is written once.

    Args:
        model: the float32 graph.
        per_channel: one scale for each output channel instead of one a matrix.
        bits: of the weights.
    """

    model: onnx.ModelProto
    per_channel: bool
    bits: int = 8
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    _constants: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tensors = self.model.graph.initializer
        self.weights = {tensor.name: tensor for tensor in tensors if tensor.data_type == TensorProto.FLOAT}
        self.opset = next(opset.version for opset in self.model.opset_import if opset.domain in {"", "ai.onnx"})

    def constant(self, name: str, value: np.ndarray | np.generic) -> str:
        """Add a constant, unless there is one of this name, and return the name."""
        self._constants.setdefault(name, np.asarray(value))
        return name

    def add(self, operator: str, inputs: Iterable[str], output: str, **attributes: Any) -> str:
        """Append a node, by default named after its output, and return the name of the output."""
        self.nodes.append(helper.make_node(operator, [*inputs], [output], **{"name": output, **attributes}))
        return output

    def largest(self, name: str) -> str:
        """Return the name of the largest number of each row, ``[..., 1]``."""
        if self.opset < 18:  # axes were an attribute
            return self.add("ReduceMax", [name], f"{name}.largest", axes=[-1])
        return self.add("ReduceMax", [name, self.constant("last_axis", np.array([-1]))], f"{name}.largest")

    def multiplies(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in {"MatMul", "Gemm"} or len(getattr(self.weights.get(node.input[1]), "dims", ())) != 2:
            return False
        plain = {"transA": 0, "alpha": 1.0, "beta": 1.0}
        return all(helper.get_attribute_value(a) == plain.get(a.name, a.i) for a in node.attribute)

    def product(self, node: onnx.NodeProto, rounded: Rounded) -> None:
        """Write the integer product of a node that :meth:`multiplies`, scaled to float32, and the bias of a ``Gemm``.

        Of a pair of ``DequantizeLinear`` and a product, the runtime would join product and bias before it looks for
        such pairs, and then compute in float32.
        """
        name, bias, output = node.input[1], list(node.input[2:]), node.output[0]
        matrix = numpy_helper.to_array(self.weights[name])
        if any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
            matrix = np.ascontiguousarray(matrix.T)
        integers, steps = symmetric_int8(matrix, axis=0 if self.per_channel else None, bits=self.bits)
        is_shared = f"{name}.int8" in self._constants
        numbers = self.constant(f"{name}.int8", integers)
        if is_shared:  # by several layers: where ONNX Runtime needs other weights, it makes them once of each name
            numbers = self.add("Reshape", [numbers, self.constant("same_shape", np.array([0, 0]))], f"{output}.int8")
        inputs = [rounded.numbers, numbers, rounded.step, self.constant(f"{name}.scale", steps), rounded.zero, ""]
        if not rounded.row_factors:
            self.add("MatMulIntegerToFloat", inputs + bias, output, name=node.name, domain=CONTRIBUTED)
        else:
            product = self.add("MatMulIntegerToFloat", inputs, f"{output}.by_row", name=node.name, domain=CONTRIBUTED)
            scaled = self.add("Mul", [product, rounded.row_factors], f"{output}.product" if bias else output)
            if bias:
                self.add("Add", [scaled, *bias], output)

    def written(self) -> onnx.ModelProto:
        del self.model.graph.node[:]
        self.model.graph.node.extend(self.nodes)
        self.model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in self._constants.items())
        if CONTRIBUTED not in {opset.domain for opset in self.model.opset_import}:
            self.model.opset_import.append(helper.make_opsetid(CONTRIBUTED, 1))
        return clean(self.model)
