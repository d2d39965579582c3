"""ONNX Runtime: opens fp32 and int8 graphs, fused attention included."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

from compress.errors import CompressError, Unavailable, first_line
from compress.models.manifest import ONNX_NAME
from compress.models.model_dir import ModelDir
from compress.models.model_files import CONFIG_NAME

OPENS = "onnx"
DEVICES = ("cpu", "cuda")
INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_CUDA = "CUDAExecutionProvider"
# float32 means float32: with TF32, the convolutions by which small students number tokens would be wrong.
_PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": [(_CUDA, {"use_tf32": "0"}), "CPUExecutionProvider"]}


def start(directory: Path, *, threads: int, device: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Return a function from int64 arrays ``[B, T]`` (``input_ids``, ``attention_mask``, ...) to logits ``[B, C]``."""
    if device == "cuda" and _CUDA not in onnxruntime.get_available_providers():
        raise Unavailable(
            "this ONNX Runtime has no CUDA; install it with 'pip install onnxruntime-gpu' or use --device cpu"
        )
    if device == "cuda":
        with contextlib.redirect_stdout(sys.stderr):  # it prints what it does not find
            onnxruntime.preload_dlls()  # from pip's packages, which PyTorch would load where it is imported
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    # Threads wait busily inside a run, which is fast, but not after it, which would slow down whatever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        session = onnxruntime.InferenceSession(str(directory / ONNX_NAME), options, providers=_PROVIDERS[device])
    except Exception as error:  # its exception classes are private and share no base but this one
        raise CompressError(f"ONNX Runtime cannot open {directory / ONNX_NAME}: {first_line(error)}") from None
    if device == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise Unavailable("ONNX Runtime could not start CUDA on this host (see its log); use --device cpu")
    names = [argument.name for argument in session.get_inputs()]
    unknown = sorted({*names} - INPUTS)
    shapes = {output.name: output.shape for output in session.get_outputs()}
    if unknown or "logits" not in shapes:
        what = f"has the input {unknown[0]!r}" if unknown else "has no output 'logits'"
        raise CompressError(f"{directory / ONNX_NAME} is no classifier that compress runs: it {what}; export it again")
    width = shapes["logits"][-1] if shapes["logits"] else None  # a name where the graph leaves it open
    if isinstance(width, int) and (directory / CONFIG_NAME).is_file():
        labels = ModelDir(directory).labels
        if width != len(labels):
            raise CompressError(
                f"{directory / ONNX_NAME} gives {width} logits, and {CONFIG_NAME} names {len(labels)} labels; copy the "
                "files of one model"
            )

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        # A tokenizer without segments leaves token_type_ids out; then every token is of segment 0.
        feed = {name: inputs[name] if name in inputs else np.zeros_like(inputs["input_ids"]) for name in names}
        try:
            return np.asarray(session.run(["logits"], feed)[0])
        except Exception as error:  # its exception classes are private and share no base but this one
            reason = first_line(error)
            raise CompressError(f"ONNX Runtime cannot run {directory / ONNX_NAME}: {reason}") from error

    return run
