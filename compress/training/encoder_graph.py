"""Read the weights of a BERT encoder out of the ONNX graph that PyTorch exported of it.

Such a graph names embeddings, biases and normalisations as the model did. Of a product it keeps the weight transposed
under a number, and the model's name in that of its node: ``/encoder/layer.0/attention/self/query/MatMul``.
"""

import re
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from transformers import BertConfig, BertModel

from compress.errors import CompressError

PARAMETER = re.compile(r"\b(?:embeddings|encoder)\b.*")
LAYER = re.compile(r"encoder\.layer\.(\d+)\.")


def weights_of(graph: onnx.GraphProto) -> dict[str, torch.Tensor]:
    """Return the weights of an encoder by the names of ``transformers.BertModel``."""
    stored = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    found = {match[0]: tensor for name, tensor in stored.items() if (match := PARAMETER.search(name))}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored and (match := PARAMETER.search(node.name)):
            name = match[0].removesuffix("/MatMul").replace("/", ".")
            found[f"{name}.weight"] = stored[node.input[1]].T.contiguous()
    return found


def write_encoder(graph: Path, like: Path, working: Path) -> None:
    """Write an encoder's configuration and weights as transformers does, without a pooler.

    Args:
        like: directory of an encoder that has the same configuration, but for the number of layers.

    Raises:
        CompressError: the graph is not of such a BERT.
    """
    weights = weights_of(onnx.load(str(graph), load_external_data=False).graph)
    layers = {int(match[1]) for name in weights if (match := LAYER.match(name))}
    config: Any = BertConfig.from_pretrained(like)
    config.num_hidden_layers = len(layers)
    model = BertModel(config, add_pooling_layer=False)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CompressError(f"{graph.name} is not the graph of a BERT that is shaped as {like.name}: {error}") from None
    model.save_pretrained(working)
