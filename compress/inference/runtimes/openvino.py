"""OpenVINO, an extra (``pip install 'compress[openvino]'``), made for Intel CPUs.

Its CPU plug-in takes no notice of the lengths that an ONNX LSTM is given and reads the padding too, which gives
wrong logits without a warning (seen with 2026.4.1). Rows of such a graph therefore run in groups of one length.
"""

from pathlib import Path

import numpy as np

from compress.errors import CompressError, Unavailable
from compress.inference.batching import EqualLengths, Run
from compress.inference.runtimes._onnx_session import open_session
from compress.models.graph_files import graph_file

OPENS = "onnx"
DEVICES = ("cpu",)


def start(directory: Path, *, threads: int, device: str) -> Run:
    try:
        import openvino
    except ImportError:
        raise Unavailable("the runtime openvino is not installed; type pip install 'compress[openvino]'") from None
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # it would choose bfloat16 by itself where the CPU has it
    }
    path = graph_file(directory)
    open_session(path, threads)  # which bounds what a graph may need; OpenVINO cannot be stopped
    core = openvino.Core()
    try:
        graph = core.read_model(path)
        compiled = core.compile_model(graph, "CPU", settings)
    except RuntimeError as error:
        reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), "no reason given")
        raise CompressError(f"OpenVINO cannot open {path} ({reason.strip()}); use --runtime onnxruntime") from None
    names = [port.get_any_name() for port in compiled.inputs]
    reads_padding = any("LSTM" in operation.get_type_name() for operation in graph.get_ops())

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        feed = {name: inputs[name] if name in inputs else np.zeros_like(inputs["input_ids"]) for name in names}
        return np.array(compiled(feed)[0])

    return EqualLengths(run, 0.0, padding_matters=True) if reads_padding else run
