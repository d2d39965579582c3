"""OpenVINO int8 by NNCF: post-training quantization, calibrated on 300 training texts.

``openvino.convert_model`` of the torch model, then ``nncf.quantize(model_type=TRANSFORMER)``: weights per channel,
activations with fixed ranges, symmetric or not as suits the layer, and bias correction. Inference is tuned for
latency and otherwise as OpenVINO chooses: where the CPU has bfloat16, the remaining float operations are in it.

Source: https://docs.openvino.ai/2026/openvino-workflow/model-optimization-guide/quantizing-models-post-training.html
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.benchmarking.competitors import TOKENIZERS, link_model, token_runner
from compress.data.examples import Example
from compress.errors import Unavailable, first_line
from compress.inference.runners import LoadedModel
from compress.models.components import input_names
from compress.models.model_dir import Model

REQUIRES = {"openvino": "openvino>=2026.4", "nncf": "nncf>=3.4", **TOKENIZERS}
DEVICES = ("cpu",)
NEEDS_TRAIN = True
CALIBRATION_ROWS = 300
GRAPH_NAME = "openvino_model.xml"


def build(directory: Path, model: Model, train: Sequence[Example], gold: np.ndarray) -> None:
    import nncf
    import openvino
    import torch

    from compress.models.components import has_heads

    link_model(directory, model, weights=False)
    loaded: Any = model.load()
    if not has_heads(loaded):
        raise Unavailable(f"OpenVINO reads the padding of an LSTM as text, so that it cannot run {model.name}")
    inputs = input_names(loaded)
    runner = token_runner(directory, lambda _: np.empty(0), inputs)
    rows = [runner.prepare([example]) for example in spread(train)]
    # Two rows of three tokens: nothing of the trace may take a size for a constant.
    traced = {name: torch.ones(2, 3, dtype=torch.int64) for name in inputs}
    try:
        graph = openvino.convert_model(loaded, example_input=traced)
        graph.reshape({port: [-1, -1] for port in graph.inputs})
    except Exception as error:  # it has no class of its own
        raise Unavailable(f"OpenVINO cannot convert this model: {first_line(error)}") from None
    quantized = nncf.quantize(graph, nncf.Dataset(rows), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(rows))
    openvino.save_model(quantized, directory / GRAPH_NAME)


def spread(train: Sequence[Example]) -> list[Example]:
    """Return the calibration texts, from the first to the last of the training rows in even steps."""
    count = min(CALIBRATION_ROWS, len(train))
    return [train[index * len(train) // count] for index in range(count)]


def start(directory: Path, *, threads: int, device: str) -> LoadedModel:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(directory / GRAPH_NAME, "CPU", settings)

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        return np.array(compiled(inputs)[0])

    return token_runner(directory, run, [port.get_any_name() for port in compiled.inputs])
