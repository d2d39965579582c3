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
from onnx.external_data_helper import uses_external_data
from transformers import BertModel

from compress.files import faults_of
from compress.models.loading import load_config

PARAMETER = re.compile(r"\b(?:embeddings|encoder)\b.*")
LAYER = re.compile(r"encoder\.layer\.(\d+)\.")


def weights_of(graph: onnx.GraphProto) -> dict[str, torch.Tensor]:
    """Return the weights of an encoder by the names of ``transformers.BertModel``."""
    if any(map(uses_external_data, graph.initializer)):
        raise ValueError("its weights are in other files")
    stored = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    found = {match[0]: tensor for name, tensor in stored.items() if (match := PARAMETER.search(name))}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[-1] in stored and (match := PARAMETER.search(node.name)):
            name = match[0].removesuffix("/MatMul").replace("/", ".")
            found[f"{name}.weight"] = stored[node.input[-1]].T
    return found


def write_encoder(graph: Path, like: Path, working: Path) -> None:
    """Write an encoder's configuration and weights as transformers does, without a pooler.

    Args:
        like: directory of an encoder that has the same configuration, but for the number of layers.

    Raises:
        CompressError: the graph is not of such a BERT.
    """
    config: Any = load_config(like)
    advice = "correct package_graph or package_like of the recipe, or install another version"
    with faults_of(graph, f"the graph of a BERT with the configuration in {like.parent.name}", advice):
        weights = weights_of(onnx.load(str(graph), load_external_data=False).graph)
        if config.model_type != "bert":
            raise ValueError(f"the configuration is of the family {config.model_type}")
        config.num_hidden_layers = len({match[1] for name in weights if (match := LAYER.match(name))})
        model = BertModel(config, add_pooling_layer=False)
        for name, weight in model.state_dict().items():
            if name not in weights or weights[name].shape != weight.shape:
                raise ValueError(f"{name} is missing or has another shape")
        model.load_state_dict(weights)
    model.save_pretrained(working)
