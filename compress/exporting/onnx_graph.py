"""Convert a torch model to an ONNX graph with fused attention, and read properties of a graph.

While torch traces the model, each layer emits one ``com.microsoft::MultiHeadAttention`` with its own head count; the
nodes around it are joined afterwards. GELU and layer norm are single nodes of opset 20. What would be computed for
padding, or for tokens that nobody reads, is taken out: :mod:`compress.exporting.token_rows`.

Residual and layer norm stay two nodes on purpose: ONNX Runtime 1.31's ``SkipLayerNormalization`` is the slower kernel
on a CPU (MiniLM, 32 x 20 tokens, one thread: it costs the fp32 model 12%, the int8 model 45%). The runtime would fuse
them where the graph holds the shapes between nodes, so that :func:`clean` removes these too.
"""

import ast
import hashlib
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation
from transformers.masking_utils import AttentionMaskInterface

from compress.errors import CompressError
from compress.exporting.token_rows import compute_only_tokens
from compress.models.dummy_inputs import example_inputs
from compress.models.modeling import input_names

ATTENTION = "compress-onnx"
Method = tuple[Any, str, Callable[..., Any]]  # an object, the name of a method, and its replacement
OPSET = 20
# How the name of a table begins whose columns are within its limit on either side, so that int8 needs no scales.
SCALED_TABLE, TABLE_LIMIT = "scaled_table.", 127
# How the name of a cast begins that makes float32 of zeros and ones, of which int8 makes integers.
ZERO_OR_ONE = "zero_or_one."
# How the name of a matrix product begins that is so small that int8 would make it slower.
SMALL_PRODUCT = "small_product."
# A protobuf message cannot be larger than 2 GiB; above this, the weights go to a file beside the graph.
_LARGEST_FILE_BYTES = 1_800_000_000


class _Logits(nn.Module):
    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **segments).logits
        return logits


def flat_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding: Tensor | None,
    position_bias: Tensor | None = None,
    *,
    heads: int,
    scale: float | None = None,
) -> Tensor:
    """Emit one ``MultiHeadAttention`` node while a model is traced; return ``[B, T, H d]``.

    Args:
        query, key, value: ``[B, T, H d]``.
        padding: int32 ``[B, T]``, 0 where a key is padding.
        position_bias: added to the scores, ``[B, H, T, T]``; the first two dimensions may be 1.
        heads: the layer's own H, which becomes the node's ``num_heads``.
        scale: factor on the scores, by default ``d ** -0.5``.
    """
    inputs = [query, key, value, None, padding, position_bias]
    while inputs[-1] is None:
        inputs.pop()
    size = query.shape[2] // heads
    return torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        inputs,
        {"num_heads": heads, "scale": float(scale or size**-0.5)},
        dtype=query.dtype,
        shape=query.shape,
        version=1,
    )


def padding_only(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """Serve as transformers' mask function: int32 ``[B, T]`` instead of a mask spread to ``[B, 1, T, T]``."""
    return None if attention_mask is None else attention_mask.int()


def write_fused_graph(
    model: PreTrainedModel,
    path: Path,
    *,
    mask: Callable[..., Any] | None = None,
    methods: Iterable[Method] = (),
) -> None:
    """Trace a model with dynamic batch and length and write its fused graph; the model is left as it was found.

    Args:
        mask: a mask function of transformers. With one, the model calls the attention function registered as
            ``ATTENTION`` with the masks of this one.
        methods: methods to replace while the model is traced.
    """
    names = input_names(model)
    example = example_inputs(model)
    if "token_type_ids" in names:
        example["token_type_ids"] = torch.zeros_like(example["input_ids"])
    # transformers computes ALBERT's GELU with tanh and powers; this is the operator of the same formula.
    gelu = partial(nn.functional.gelu, approximate="tanh")
    gelus = [(module, "forward", gelu) for module in model.modules() if isinstance(module, NewGELUActivation)]
    with quiet(), ExitStack() as stack:
        stack.callback(model.train, model.training)
        if mask is not None:
            AttentionMaskInterface.register(ATTENTION, mask)
            stack.callback(setattr, model.config, "_attn_implementation", model.config._attn_implementation)
            model.config._attn_implementation = ATTENTION
        for owner, name, method in (*methods, *gelus):
            setattr(owner, name, method)
            stack.callback(delattr, owner, name)
        program = torch.onnx.export(
            _Logits(model).eval(),
            (),
            kwargs=example,
            dynamic_shapes={name: {0: "batch", 1: "length"} for name in names},
            input_names=list(names),
            output_names=["logits"],
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # the dynamo exporter always returns one
        graph = program.model_proto
    name_by_module(graph)
    join_attention(graph)
    compute_only_tokens(clean(graph))
    share_weights(graph)
    write_graph(clean(graph), path)


def name_by_module(model: onnx.ModelProto) -> None:
    """Name nodes after the torch module that they come from, such as ``bert.pooler.dense/node_Gemm_186``, in place."""
    for node in model.graph.node:
        scopes = {entry.key: entry.value for entry in node.metadata_props}.get("pkg.torch.onnx.name_scopes")
        if scopes:
            *_, module, _ = ast.literal_eval(scopes)
            node.name = f"{module.removeprefix('model.')}/{node.name}"


def module_of(node: onnx.NodeProto) -> str:
    """Return the torch module that a node of our graphs comes from, or an empty string."""
    return node.name.partition("/")[0] if "/" in node.name else ""


def layer_of(node: onnx.NodeProto) -> int | None:
    """Return the number of the encoder layer that a node of our graphs belongs to, counted from 0, or None."""
    found = re.search(r"\.(?:albert_)?layers?\.(\d+)\.", module_of(node))
    return int(found[1]) if found else None


def layers_to_keep(model: onnx.ModelProto, numbers: Iterable[int] | None) -> set[int]:
    """Return the numbers of encoder layers that a quantizer is to leave.

    Raises:
        CompressError: the graph has no such layer.
    """
    kept, there = set(numbers or ()), {layer_of(node) for node in model.graph.node} - {None}
    if missing := sorted(kept - there):
        raise CompressError(f"keep_fp32 names the layers {missing}, and the graph has {len(there)}, counted from 0")
    return kept


def join_attention(model: onnx.ModelProto) -> None:
    """Feed every ``MultiHeadAttention`` straight from its projections and give it their biases, in place."""
    graph = model.graph
    producers = {output: node for node in graph.node for output in node.output}
    weights = {tensor.name: tensor for tensor in graph.initializer}

    def comes_from(name: str, operator: str) -> bool:
        return name in producers and producers[name].op_type == operator

    def before_reshapes(name: str) -> str:
        while comes_from(name, "Reshape"):
            name = producers[name].input[0]
        return name

    def adds_bias(name: str) -> bool:
        product, bias = producers[name].input if comes_from(name, "Add") else ("", "")
        return comes_from(product, "MatMul") and bias in weights

    for node in graph.node:
        if node.op_type == "MultiHeadAttention":
            for position in range(3):
                node.input[position] = before_reshapes(node.input[position])
            if all(map(adds_bias, node.input[:3])):
                sums = [producers[name] for name in node.input[:3]]
                bias = np.concatenate([numpy_helper.to_array(weights[add.input[1]]) for add in sums])
                graph.initializer.append(numpy_helper.from_array(bias, f"{node.output[0]}.bias"))
                inputs = [*(add.input[0] for add in sums), f"{node.output[0]}.bias", *node.input[4:]]
                del node.input[:]
                node.input.extend(inputs)
        elif node.op_type == "MatMul":
            source = before_reshapes(node.input[0])
            if comes_from(source, "MultiHeadAttention"):
                node.input[0] = source


def share_weights(model: onnx.ModelProto) -> None:
    """Store equal weights once, in place: the exporter writes a shared layer's (ALBERT's) once for each of its uses."""
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    renamed: dict[str, str] = {}
    for tensor in model.graph.initializer:
        content = hashlib.sha256(numpy_helper.to_array(tensor).tobytes()).digest()
        renamed[tensor.name] = first.setdefault((tensor.data_type, tuple(tensor.dims), content), tensor.name)
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = renamed.get(name, name)


def drop_segments(path: str | Path) -> None:
    """Remove ``token_type_ids`` from a graph's inputs, where it has them: every token is then of segment 0."""
    model = onnx.load(str(path))
    graph = model.graph
    found = [argument for argument in graph.input if argument.name == "token_type_ids"]
    if not found:
        return
    graph.input.remove(found[0])
    zero = onnx.helper.make_tensor("zero_segment", onnx.TensorProto.INT64, [1], [0])
    graph.node.insert(0, onnx.helper.make_node("Shape", ["input_ids"], ["segments_shape"]))
    graph.node.insert(1, onnx.helper.make_node("ConstantOfShape", ["segments_shape"], ["token_type_ids"], value=zero))
    write_graph(model, path)


def clean(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove nodes, weights and optional outputs that nothing reads, and the exporter's metadata, in place."""
    graph = model.graph
    wanted = {output.name for output in graph.output}
    alive: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if not wanted.intersection(node.output):
            continue
        while node.input and not node.input[-1]:
            node.input.pop()
        if node.op_type != "Split":  # whose outputs are counted
            while node.output[-1] not in wanted:
                node.output.pop()
            for position, name in enumerate(node.output):
                if name not in wanted:
                    node.output[position] = ""
        wanted.update(node.input)
        alive.append(node)
    weights = [tensor for tensor in graph.initializer if tensor.name in wanted]
    for node in alive:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*graph.input, *graph.output, *weights):
        del value.metadata_props[:]
    del graph.node[:], graph.initializer[:], graph.value_info[:], graph.metadata_props[:], model.metadata_props[:]
    graph.node.extend(reversed(alive))
    graph.initializer.extend(weights)
    return model


def write_graph(model: onnx.ModelProto, path: str | Path) -> None:
    """Write ``model.onnx``; weights of more than 1.8 GB are in ``model.onnx.data`` beside it."""
    large = model.ByteSize() > _LARGEST_FILE_BYTES
    onnx.save(model, str(path), save_as_external_data=large, location=f"{Path(path).name}.data")


def operator_counts(path: str | Path) -> dict[str, int]:
    """Return how many nodes of each kind a graph has, most frequent first."""
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    return dict(Counter(node.op_type for node in nodes).most_common())


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, and log messages up to warnings: ONNX libraries report their own internals."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(previous)
