"""ONNX graphs that are valid and hostile or unlucky: changes of a classifier's graph, in place, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DOUBLINGS = 40


def _constant(graph: onnx.GraphProto, name: str, value: Any) -> str:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def _before_logits(graph: onnx.GraphProto) -> str:
    """Rename what gives the logits, and return the new name."""
    for node in graph.node:
        node.output[:] = ["honest" if name == "logits" else name for name in node.output]
        node.input[:] = ["honest" if name == "logits" else name for name in node.input]
    return "honest"


def end(graph: onnx.GraphProto, operator: str, *inputs: Any, kind: int = TensorProto.FLOAT, **attributes: Any) -> None:
    """Let one operator on the logits give the logits; inputs beside them are constants."""
    names = [_before_logits(graph), *(_constant(graph, f"end.{n}", value) for n, value in enumerate(inputs))]
    graph.node.append(helper.make_node(operator, names, ["logits"], **attributes))
    output = next(value for value in graph.output if value.name == "logits")
    output.CopyFrom(helper.make_tensor_value_info("logits", kind, None))


def _huge(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], last: str) -> None:
    """Add the mean of a huge tensor to the logits."""
    graph.node.extend(nodes)
    zero = _constant(graph, "huge.keep", np.float32(0))
    graph.node.append(helper.make_node("ReduceMean", [last], ["huge.mean"], keepdims=0))
    graph.node.append(helper.make_node("Mul", ["huge.mean", zero], ["huge.zero"]))
    honest = _before_logits(graph)
    graph.node.append(helper.make_node("Add", [honest, "huge.zero"], ["logits"]))


def _doubling(graph: onnx.GraphProto, node: Callable[[str, str], onnx.NodeProto]) -> None:
    _constant(graph, "double.0", np.ones((1, 2), np.float32))
    nodes = [node(f"double.{n}", f"double.{n + 1}") for n in range(DOUBLINGS)]
    _huge(graph, nodes, f"double.{DOUBLINGS}")


def doubling_concat(graph: onnx.GraphProto) -> None:
    _doubling(graph, lambda name, made: helper.make_node("Concat", [name, name], [made], axis=0))


def doubling_tile(graph: onnx.GraphProto) -> None:
    _constant(graph, "twice", np.array([2, 1], np.int64))
    _doubling(graph, lambda name, made: helper.make_node("Tile", [name, "twice"], [made]))


def doubling_pad(graph: onnx.GraphProto) -> None:
    _constant(graph, "pads", np.array([0, 2**36, 0, 0], np.int64))
    _constant(graph, "double.0", np.ones((1, 2), np.float32))
    _huge(graph, [helper.make_node("Pad", ["double.0", "pads"], ["padded"])], "padded")


def outer_sum(graph: onnx.GraphProto) -> None:
    """A column plus a row, of what the length of the text does not bound."""
    _constant(graph, "column", np.ones((2**20, 1), np.float32))
    _constant(graph, "row", np.ones((1, 2**20), np.float32))
    _huge(graph, [helper.make_node("Add", ["column", "row"], ["outer"])], "outer")


def outer_product(graph: onnx.GraphProto) -> None:
    _constant(graph, "column", np.ones((2**20, 1), np.float32))
    _constant(graph, "row", np.ones((1, 2**20), np.float32))
    _huge(graph, [helper.make_node("MatMul", ["column", "row"], ["outer"])], "outer")


def expand(graph: onnx.GraphProto) -> None:
    _constant(graph, "double.0", np.ones((1, 1), np.float32))
    _constant(graph, "shape", np.array([2**20, 2**20], np.int64))
    _huge(graph, [helper.make_node("Expand", ["double.0", "shape"], ["expanded"])], "expanded")


def constant_of_shape(graph: onnx.GraphProto) -> None:
    _constant(graph, "shape", np.array([2**20, 2**20], np.int64))
    _huge(graph, [helper.make_node("ConstantOfShape", ["shape"], ["filled"])], "filled")


def long_range(graph: onnx.GraphProto) -> None:
    for name, value in (("start", 0), ("limit", 2**40), ("delta", 1)):
        _constant(graph, f"range.{name}", np.float32(value))
    _huge(graph, [helper.make_node("Range", ["range.start", "range.limit", "range.delta"], ["ranged"])], "ranged")


def range_of_ids(graph: onnx.GraphProto) -> None:
    """A length that the values of the input decide, so that no shape says it."""
    ids = "input_ids"
    _constant(graph, "range.factor", np.int64(2**40))
    for name, value in (("start", 0), ("delta", 1), ("one", 1)):
        _constant(graph, f"range.{name}", np.int64(value))
    nodes = [
        helper.make_node("ReduceMax", [ids], ["largest"], keepdims=0),
        helper.make_node("Max", ["largest", "range.one"], ["largest.one"]),
        helper.make_node("Mul", ["largest.one", "range.factor"], ["limit"]),
        helper.make_node("Range", ["range.start", "limit", "range.delta"], ["ranged.integers"]),
        helper.make_node("Cast", ["ranged.integers"], ["ranged"], to=TensorProto.FLOAT),
    ]
    _huge(graph, nodes, "ranged")


def resize(graph: onnx.GraphProto) -> None:
    _constant(graph, "double.0", np.ones((1, 1, 1, 2), np.float32))
    _constant(graph, "scales", np.array([1, 1, 2**20, 2**19], np.float32))
    _huge(graph, [helper.make_node("Resize", ["double.0", "", "scales"], ["resized"])], "resized")


def one_hot(graph: onnx.GraphProto) -> None:
    _constant(graph, "depth", np.int64(2**38))
    _constant(graph, "values", np.array([0, 1], np.float32))
    _huge(graph, [helper.make_node("OneHot", ["input_ids", "depth", "values"], ["hot"])], "hot")


def loop(graph: onnx.GraphProto) -> None:
    """Run for ever and then give the logits."""
    honest = _before_logits(graph)
    _constant(graph, "loop.times", np.int64(2**62))
    _constant(graph, "loop.condition", np.bool_(True))
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition"], ["again"]),
            helper.make_node("Identity", ["carried"], ["carried.next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried.next", TensorProto.FLOAT, None),
        ],
    )
    inputs = ["loop.times", "loop.condition", honest]
    graph.node.append(helper.make_node("Loop", inputs, ["logits"], body=body))


def branch(graph: onnx.GraphProto) -> None:
    """Give the logits by an If whose parts have graphs of their own."""
    honest = _before_logits(graph)
    _constant(graph, "if.condition", np.bool_(True))
    part = helper.make_graph(
        [helper.make_node("Identity", [honest], ["part"])],
        "part",
        [],
        [helper.make_tensor_value_info("part", TensorProto.FLOAT, None)],
    )
    graph.node.append(helper.make_node("If", ["if.condition"], ["logits"], then_branch=part, else_branch=part))


def three_columns(graph: onnx.GraphProto) -> None:
    end(graph, "Gather", np.array([0, 1, 0], np.int64), axis=1)


def one_column(graph: onnx.GraphProto) -> None:
    end(graph, "Gather", np.array([0], np.int64), axis=1)


def twice_the_rows(graph: onnx.GraphProto) -> None:
    honest = _before_logits(graph)
    graph.node.append(helper.make_node("Concat", [honest, honest], ["logits"], axis=0))
    next(value for value in graph.output if value.name == "logits").CopyFrom(
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)
    )


def one_dimension(graph: onnx.GraphProto) -> None:
    end(graph, "Reshape", np.array([-1], np.int64))


def three_dimensions(graph: onnx.GraphProto) -> None:
    end(graph, "Unsqueeze", np.array([1], np.int64))


def integers(graph: onnx.GraphProto) -> None:
    end(graph, "Cast", kind=TensorProto.INT64, to=TensorProto.INT64)


def booleans(graph: onnx.GraphProto) -> None:
    end(graph, "Cast", kind=TensorProto.BOOL, to=TensorProto.BOOL)


def texts(graph: onnx.GraphProto) -> None:
    end(graph, "Cast", kind=TensorProto.STRING, to=TensorProto.STRING)


def no_numbers(graph: onnx.GraphProto) -> None:
    end(graph, "Mul", np.float32("nan"))


def infinite(graph: onnx.GraphProto) -> None:
    end(graph, "Add", np.float32("inf"))


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in (*graph.input, *graph.output):
        if value.name == old:
            value.name = new


def other_input(graph: onnx.GraphProto) -> None:
    _rename(graph, "input_ids", "inputs")


def other_output(graph: onnx.GraphProto) -> None:
    _rename(graph, "logits", "output_0")


# Answers that do not fit the labels.
WRONG_ANSWERS: tuple[Callable[[onnx.GraphProto], None], ...] = (
    *(three_columns, one_column, twice_the_rows, one_dimension, three_dimensions),
    *(integers, booleans, texts, no_numbers, infinite),
)
# Work that has no end, or needs all of the memory.
BOMBS: tuple[Callable[[onnx.GraphProto], None], ...] = (
    *(loop, branch, doubling_concat, doubling_tile, doubling_pad, outer_sum, outer_product, expand),
    *(constant_of_shape, long_range, range_of_ids, resize, one_hot),
)
OTHER_NAMES: tuple[Callable[[onnx.GraphProto], None], ...] = (other_input, other_output)
