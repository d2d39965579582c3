"""Put a scale and a shift of the logits into a model: into the last linear layer of torch, after the graph of ONNX.

Every client then computes calibrated probabilities with the softmax that it always takes.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from transformers import PreTrainedModel

from compress.calibration.scaling import Scaling
from compress.errors import CompressError
from compress.exporting.onnx_graph import write_graph
from compress.models.dummy_inputs import example_inputs
from compress.models.graph_files import copy_graph, graph_file
from compress.models.manifest import ONNX_NAME

TOLERANCE = 1e-4
UNCALIBRATED = "uncalibrated_logits"


def last_layer(model: PreTrainedModel) -> nn.Linear:
    """Return the linear layer whose output are the logits.

    Raises:
        CompressError: there is none.
    """
    found: list[tuple[nn.Linear, torch.Tensor]] = []
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_hook(lambda own, _, output: found.append((own, output))) for layer in layers]
    try:
        with torch.no_grad():
            logits = model(**example_inputs(model)).logits
    finally:
        for hook in hooks:
            hook.remove()
    # A decoder classifies every token, and its logits are rows of that.
    ends = [layer for layer, output in reversed(found) if output.shape[-1] == logits.shape[-1]]
    if not ends:
        raise CompressError(
            f"this {model.config.model_type!r} model has no linear layer that gives its logits, so that they cannot be "
            "scaled; turn it into ONNX with 'compress export' and calibrate that"
        )
    return ends[0]


def rescale_torch(model: PreTrainedModel, scaling: Scaling) -> None:
    """Scale the weights of the last layer of a torch model, in place.

    Raises:
        CompressError: its logits are not scaled by that.
    """
    layer, inputs = last_layer(model), example_inputs(model)
    scale = torch.as_tensor(scaling.scale, dtype=layer.weight.dtype)
    with torch.no_grad():
        expected = scaling.apply(model(**inputs).logits.double().numpy())
        layer.weight.mul_(scale[:, None])
        if layer.bias is not None:
            layer.bias.mul_(scale)
            if scaling.shift is not None:
                layer.bias.add_(torch.as_tensor(scaling.shift, dtype=layer.bias.dtype))
        found = model(**inputs).logits.double().numpy()
    if np.abs(found - expected).max() > TOLERANCE * max(1.0, np.abs(expected).max()):
        raise CompressError(
            f"the logits of this {model.config.model_type!r} model do not follow the weights of its last layer; turn "
            "it into ONNX with 'compress export' and calibrate that"
        )


def rescale_graph(source: Path, target: Path, scaling: Scaling) -> None:
    """Write the graph of a directory into another, with a multiplication, and an addition, after its logits."""
    if scaling.is_identity:
        copy_graph(graph_file(source), target)
        return
    model = onnx.load(str(graph_file(source)))
    graph = model.graph
    output = next(value for value in graph.output if value.name == "logits")
    kind = helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
    known = {name for node in graph.node for name in node.output}
    name = UNCALIBRATED
    while name in known:  # calibrated before
        name = f"{name}_"
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name if one == "logits" else one for one in names]
    for operator, values in (("Mul", scaling.scale), ("Add", scaling.shift)):
        if values is not None:
            constant = f"{name}_{operator.lower()}"
            graph.initializer.append(numpy_helper.from_array(values.astype(kind), constant))
            graph.node.append(helper.make_node(operator, [name, constant], [f"{constant}_output"]))
            name = f"{constant}_output"
    graph.node[-1].output[0] = "logits"
    write_graph(model, target / ONNX_NAME)
