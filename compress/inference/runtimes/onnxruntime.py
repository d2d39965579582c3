"""ONNX Runtime: opens fp32 and int8 graphs, fused attention included."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from compress.errors import Unavailable
from compress.inference.batching import Run
from compress.inference.runtimes._onnx_session import Unopened, open_session
from compress.models.graph_files import graph_file

OPENS = "onnx"
DEVICES = ("cpu", "cuda")
_CUDA = "CUDAExecutionProvider"
# float32 means float32: with TF32, the convolutions by which small students number tokens would be wrong.
_PROVIDERS: dict[str, list[Any]] = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": [(_CUDA, {"use_tf32": "0"}), "CPUExecutionProvider"],
}


def start(directory: Path, *, threads: int, device: str) -> Run:
    if device == "cuda" and _CUDA not in onnxruntime.get_available_providers():
        raise Unavailable(
            "this ONNX Runtime has no CUDA; install it with 'pip install onnxruntime-gpu' or use --device cpu"
        )
    path = graph_file(directory)
    if device == "cuda":
        with contextlib.redirect_stdout(sys.stderr):  # it prints what it does not find
            onnxruntime.preload_dlls()  # from pip's packages, which PyTorch would load where it is imported
        with contextlib.suppress(Unopened):  # it may have operators for GPUs alone
            open_session(path, threads)
    session = open_session(path, threads, _PROVIDERS[device])
    if device == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise Unavailable("ONNX Runtime could not start CUDA on this host (see its log); use --device cpu")
    names = [argument.name for argument in session.get_inputs()]

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        # A tokenizer without segments leaves token_type_ids out; then every token is of segment 0.
        feed = {name: inputs[name] if name in inputs else np.zeros_like(inputs["input_ids"]) for name in names}
        return np.asarray(session.run(["logits"], feed)[0])

    return run
