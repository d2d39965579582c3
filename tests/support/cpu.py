"""int8 on the CPU that the tests run on.

Products of uint8 and int8 saturate on x86 CPUs without VNNI, so that logits there say little about a graph.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

from compress.host import describe_host
from compress.inference.batching import open_runtime


def saturates() -> bool:
    """Tell whether products of uint8 and int8 overflow here."""
    flags = set(describe_host()["cpu_flags"])
    return "avx2" in flags and not flags & {"avx512_vnni", "avx_vnni"}


def exact_runtime(directory: Path) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Open an ONNX directory so that int8 products are exact on this CPU; slower where it would saturate."""
    if not saturates():
        return open_runtime(directory, threads=1)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"), options, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        feed = {node.name: inputs.get(node.name, np.zeros_like(inputs["input_ids"])) for node in session.get_inputs()}
        return np.asarray(session.run(["logits"], feed)[0])

    return run
