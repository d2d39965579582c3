"""Convert a torch model to an ONNX graph with fused attention, and read properties of a graph.

While torch traces the model, each layer emits one ``com.microsoft::MultiHeadAttention`` with its own head count; the
nodes around it are joined afterwards. GELU and layer norm are single nodes of opset 20. What would be computed for
padding, or for tokens that nobody reads, is taken out (:func:`compute_only_tokens`).

Residual and layer norm stay two nodes on purpose: ONNX Runtime 1.31's ``SkipLayerNormalization`` is the slower kernel
on a CPU (MiniLM, 32 x 20 tokens, one thread: it costs the fp32 model 12%, the int8 model 45%). The runtime would fuse
them where the graph holds the shapes between nodes, so that :func:`clean` removes these too.
"""

import ast
import hashlib
import logging
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import NodeProto, helper, numpy_helper
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation
from transformers.masking_utils import AttentionMaskInterface

from compress.errors import refuse
from compress.models.components import example_inputs, input_names
from compress.models.networks.small_graph import NETWORK, OPSET

ATTENTION = "compress-onnx"
Method = tuple[Any, str, Callable[..., Any]]  # an object, the name of a method, and its replacement
# Operators that give every token its own result where the other operands are weights without a dimension of tokens.
_BY_TOKEN = frozenset({"Add", "Gelu", "LayerNormalization", "MatMul", "Mul", "Relu", "Split", "Tanh"})
_ATTENTION = "MultiHeadAttention"
_EMBEDDINGS = re.compile(r"(^|\.)embeddings[./]")
# How states of tokens are held, as the end of a tensor's name: padded [B, T, E], listed [N, E], first tokens [B, E].
_PADDED, _LISTED, _FIRST = "", ".listed", ".first"
# A protobuf message cannot be larger than 2 GiB; above this, the weights go to a file beside the graph.
_LARGEST_FILE_BYTES = 1_800_000_000


class _Logits(nn.Module):
    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **segments).logits  # type: ignore[no-any-return]


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
    return torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        inputs,
        {"num_heads": heads, "scale": float(scale or (query.shape[2] // heads) ** -0.5)},
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
    names, example = input_names(model), example_inputs(model)
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
        graph = program.model_proto  # type: ignore[union-attr]
    name_by_module(graph)
    join_attention(graph)
    compute_only_tokens(clean(graph))
    share_weights(graph)
    write_graph(clean(graph), path)


def name_by_module(model: onnx.ModelProto) -> None:
    """Name nodes after the torch module that they come from, such as ``bert.pooler.dense/node_Gemm_186``, in place."""
    for node in model.graph.node:
        for scopes in (entry.value for entry in node.metadata_props if entry.key == "pkg.torch.onnx.name_scopes"):
            node.name = f"{ast.literal_eval(scopes)[-2].removeprefix('model.')}/{node.name}"


def module_of(node: NodeProto) -> str:
    """Return the torch module that a node of our graphs comes from, or an empty string."""
    return node.name.partition("/")[0] if "/" in node.name else ""


def layer_of(node: NodeProto) -> int | None:
    """Return the number of the encoder layer that a node of our graphs belongs to, counted from 0, or None."""
    found = re.search(r"\.(?:albert_)?layers?\.(\d+)\.", module_of(node))
    return int(found[1]) if found else None


def layers_to_keep(model: onnx.ModelProto, numbers: Iterable[int] | None) -> set[int]:
    """Return the numbers of encoder layers that a quantizer is to leave.

    Raises:
        CompressError: the graph has no such layer.
    """
    kept, there = set(numbers or ()), {layer_of(node) for node in model.graph.node} - {None}
    missing = sorted(kept - there)
    refuse((missing, f"keep_fp32 names the layers {missing}, and the graph has {len(there)}, counted from 0"))
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

    for node in graph.node:
        if node.op_type == "MatMul" and comes_from(source := before_reshapes(node.input[0]), "MultiHeadAttention"):
            node.input[0] = source
        if node.op_type != "MultiHeadAttention":
            continue
        node.input[:3] = map(before_reshapes, node.input[:3])
        sums = [producers[name] for name in node.input[:3] if comes_from(name, "Add")]
        if len(sums) == 3 and all(comes_from(add.input[0], "MatMul") and add.input[1] in weights for add in sums):
            bias = np.concatenate([numpy_helper.to_array(weights[add.input[1]]) for add in sums])
            graph.initializer.append(numpy_helper.from_array(bias, f"{node.output[0]}.bias"))
            node.input[:4] = [*(add.input[0] for add in sums), f"{node.output[0]}.bias"]


def share_weights(model: onnx.ModelProto) -> None:
    """Store equal weights once, in place: the exporter writes a shared layer's (ALBERT's) once for each of its uses."""
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    renamed: dict[str, str] = {}
    for tensor in model.graph.initializer:
        content = hashlib.sha256(numpy_helper.to_array(tensor).tobytes()).digest()
        renamed[tensor.name] = first.setdefault((tensor.data_type, tuple(tensor.dims), content), tensor.name)
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def drop_segments(path: str | Path) -> None:
    """Remove ``token_type_ids`` from a graph's inputs, where it has them: every token is then of segment 0."""
    model = onnx.load(str(path))
    graph, zero = model.graph, helper.make_tensor("zero_segment", onnx.TensorProto.INT64, [1], [0])
    for argument in [argument for argument in graph.input if argument.name == "token_type_ids"]:
        graph.input.remove(argument)
        graph.node.insert(0, helper.make_node("Shape", ["input_ids"], ["segments_shape"]))
        graph.node.insert(1, helper.make_node("ConstantOfShape", ["segments_shape"], [argument.name], value=zero))
        write_graph(model, path)


def clean(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove nodes, weights and optional outputs that nothing reads, and the exporter's metadata, in place."""
    graph = model.graph
    wanted = {output.name for output in graph.output}
    alive: list[NodeProto] = []
    for node in reversed(graph.node):
        if not wanted.intersection(node.output):
            continue
        while node.input and not node.input[-1]:
            node.input.pop()
        if node.op_type != "Split":  # whose outputs are counted
            while node.output[-1] not in wanted:
                node.output.pop()
            node.output[:] = [name if name in wanted else "" for name in node.output]
        wanted.update(node.input)
        alive.append(node)
    weights = [tensor for tensor in graph.initializer if tensor.name in wanted]
    for value in (*alive, *graph.input, *graph.output, *weights):
        del value.metadata_props[:]
        value.doc_string = ""
    own = {one.key: one.value for one in model.metadata_props if one.key == NETWORK}
    del graph.node[:], graph.initializer[:], graph.value_info[:], graph.metadata_props[:]
    helper.set_model_props(model, own)
    graph.node.extend(reversed(alive))
    graph.initializer.extend(weights)
    return model


def write_graph(model: onnx.ModelProto, path: str | Path) -> None:
    """Write ``model.onnx``; weights of more than 1.8 GB are in ``model.onnx.data`` beside it."""
    large = model.ByteSize() > _LARGEST_FILE_BYTES
    onnx.save(model, str(path), save_as_external_data=large, location=f"{Path(path).name}.data")


def operator_counts(path: str | Path) -> dict[str, int]:
    """Return how many nodes of each kind a graph has, most frequent first."""
    graph = onnx.load(str(path), load_external_data=False).graph
    return dict(Counter(node.op_type for node in graph.node).most_common())


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


def compute_only_tokens(model: onnx.ModelProto) -> None:
    """Rewrite a fused graph whose nodes are named after their modules so that it computes no other tokens, in place.

    A batch of texts of different lengths is padded: of 32 sentences of SST-2 every second token is padding. Between the
    embeddings and the head all layers but attention treat tokens one by one, so that the graph gives them ``[N, E]``,
    the N tokens of the batch in one list, and pads around attention only (CTranslate2 and FasterTransformer do the
    same).

    A classifier reads the first token of the last layer. The others matter there as keys and values only, so that this
    layer's queries and all that follows its attention are computed for first tokens alone, ``[B, E]``. Both are exact.

    ``compress predict`` of 8,720 sentences by a student of three layers takes 21.8 CPU seconds with this and 29.9
    without, in int8 10.2 and 13.4 (one thread, medians of three turns; single batches:
    ``benchmarks/results/token-rows.jsonl``).

    Every row of ``attention_mask`` has to begin with a token. Where there is padding, an output ``[B, T, C]`` has the
    logits of some token.
    """
    graph = model.graph
    tokens = _tokens(graph)
    first = _only_first(graph, tokens)
    nodes = _Nodes(tokens)
    for node in list(graph.node):
        outputs = tokens.intersection(node.output)
        if node.op_type == _ATTENTION:
            nodes.attend(node, _FIRST if outputs & first else _PADDED)
        elif _reads_first_token(node, graph) and node.input[0] in tokens:
            nodes.add("Identity", [nodes.held(node.input[0], _FIRST)], node.output[0])
        elif outputs and not _EMBEDDINGS.search(node.name):
            nodes.keep(node, _FIRST if outputs & first else _LISTED)
        else:
            nodes.keep(node, _PADDED)
    for output in graph.output:
        nodes.held(output.name, _PADDED)
    del graph.node[:]
    graph.node.extend(nodes.made)
    graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), k) for k, v in _Nodes.CONSTANTS.items())


def _tokens(graph: onnx.GraphProto) -> set[str]:
    """Return the states ``[B, T, E]`` of tokens, from the embeddings to the head, that can be computed one by one."""
    dimensions = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    found: set[str] = set()
    embedded: set[str] = set()
    for node in graph.node:
        if _EMBEDDINGS.search(node.name):
            embedded.update(node.output)
        elif node.op_type == _ATTENTION:
            found.add(node.output[0])
        elif node.op_type in _BY_TOKEN and node.input[0] in found | embedded:
            states = {name for name in node.input if name in found or name in embedded}
            most = 2 if node.op_type == "MatMul" else 1
            if all(name in states or dimensions.get(name, most + 1) <= most for name in node.input):
                found.update(states, node.output)
    return found


def _only_first(graph: onnx.GraphProto, tokens: set[str]) -> set[str]:
    """Return those of ``tokens`` of which only first tokens are read."""
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    found: set[str] = set()

    def reads_first(node: NodeProto, name: str) -> bool:
        as_key_or_value = node.op_type == _ATTENTION and name in node.input[1:]
        return _reads_first_token(node, graph) or (node.output[0] in found and not as_key_or_value)

    for node in reversed(graph.node):
        made = tokens.intersection(node.output)
        if all(readers[name] and all(reads_first(reader, name) for reader in readers[name]) for name in made):
            found |= made
    return found


def _reads_first_token(node: NodeProto, graph: onnx.GraphProto) -> bool:
    """Whether a node is ``states[:, 0]``."""
    if node.op_type != "Gather" or all(one.i != 1 for one in node.attribute if one.name == "axis"):
        return False
    index = [tensor for tensor in graph.initializer if tensor.name == node.input[1] and not tensor.dims]
    return bool(index) and numpy_helper.to_array(index[0]) == 0


class _Nodes:
    """The nodes of a rewritten graph, and in which ways they hold the states of ``tokens``."""

    CONSTANTS: dict[str, Any] = {
        "tokens.zero": 0,
        "tokens.one": 1,
        "tokens.any": [-1],
        "tokens.ones": [1],
        "tokens.zeros": [0],
        "tokens.axis": [2],
    }
    ROWS, PLACES, FIRST_PLACES = "tokens.rows", "tokens.places", "tokens.first_places"

    def __init__(self, tokens: set[str]) -> None:
        self.tokens = tokens
        self.made: list[NodeProto] = []
        self.names: set[str] = set()
        # Row and column of each token [N, 2]; where a row's tokens are in the list [B, T, 1], and its first one [B, 1].
        # With GatherND: OpenVINO 2026.4 crashes where a Gather of unknown indices follows a product of one scale.
        for operator, inputs, output in (
            ("NonZero", ["attention_mask"], "tokens.columns"),
            ("Transpose", ["tokens.columns"], self.ROWS),
            ("Shape", ["attention_mask"], "tokens.shape"),
            ("Reshape", ["attention_mask", "tokens.any"], "tokens.flat"),
            ("CumSum", ["tokens.flat", "tokens.zero"], "tokens.counted"),
            ("Sub", ["tokens.counted", "tokens.one"], "tokens.before"),
            ("Reshape", ["tokens.before", "tokens.shape"], "tokens.grid"),
            ("Unsqueeze", ["tokens.grid", "tokens.any"], self.PLACES),
        ):
            self.add(operator, inputs, output)
        self.add("Gather", [self.PLACES, "tokens.zero"], self.FIRST_PLACES, axis=1)

    def add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.made.append(helper.make_node(operator, inputs, [output], **attributes))
        self.names.add(output)
        return output

    def held(self, name: str, way: str) -> str:
        """Return the name of a tensor that is held in a way, if it has states of tokens."""
        if name not in self.tokens or name + way in self.names:
            return name + way if name in self.tokens else name
        listed = name + _LISTED
        if way == _PADDED:
            return self.add("GatherND", [listed, self.PLACES], name)
        if way == _LISTED:
            return self.add("GatherND", [name, self.ROWS], listed)
        if listed in self.names:
            return self.add("GatherND", [listed, self.FIRST_PLACES], name + _FIRST)
        return self.add("Gather", [name, "tokens.zero"], name + _FIRST, axis=1)

    def keep(self, node: NodeProto, way: str) -> None:
        """Add a node that reads and makes states of tokens in one way."""
        node.input[:] = [self.held(name, way) for name in node.input]
        node.output[:] = [name + way if name in self.tokens else name for name in node.output]
        if way != _PADDED:
            for attribute in node.attribute:
                if attribute.name == "axis":
                    attribute.i = -1  # of three dimensions it was the last, which may be called 2
        self.made.append(node)
        self.names.update(node.output)

    def attend(self, node: NodeProto, way: str) -> None:
        """Add a node of attention, for all queries or for the first ones."""
        query, output = node.input[0], node.output[0]
        for position in range(way == _FIRST, 3):
            node.input[position] = self.held(node.input[position], _PADDED)
        if way == _FIRST:
            if query in self.tokens:
                node.input[0] = self.add("Unsqueeze", [self.held(query, _FIRST), "tokens.ones"], f"{query}.query")
            else:
                node.input[0] = self.add("Gather", [query, "tokens.zeros"], f"{query}.query", axis=1)
            if len(node.input) > 5:
                bounds = ["tokens.zeros", "tokens.ones", "tokens.axis"]
                node.input[5] = self.add("Slice", [node.input[5], *bounds], f"{output}.bias_of_first")
            node.output[0] = f"{output}.attended"
        self.made.append(node)
        if way == _FIRST:
            self.add("Squeeze", [node.output[0], "tokens.ones"], output + _FIRST)
        self.names.update(node.output)
