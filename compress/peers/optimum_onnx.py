"""optimum's own ONNX export in ONNX Runtime, float32, in an environment of its own.

``ORTModelForSequenceClassification.from_pretrained(directory, export=True)``. optimum-onnx needs transformers 4, so it
takes stock architectures only.

Source: https://huggingface.co/docs/optimum-onnx/onnxruntime/quickstart
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compress import optimum_client
from compress.artifact import ModelDir
from compress.examples import Example
from compress.measuring.token_runner import TokenRunner
from compress.peers import need, need_device, place, token_runner

REQUIRES = optimum_client.REQUIRES
ENVIRONMENT = optimum_client.ENVIRONMENT
DEVICES = ("cpu",)
NEEDS_TRAIN = False


def build(directory: Path, model: ModelDir, train: Sequence[Example], gold: np.ndarray | None) -> None:
    """Export the model."""
    need(__name__, REQUIRES)
    place(directory, model, weights=False)
    with tempfile.TemporaryDirectory() as scratch:
        place(Path(scratch), model, weights=True)
        optimum_client.fit_transformers_4(Path(scratch))
        optimum_client.export(Path(scratch), directory)
    optimum_client.fit_transformers_4(directory)


def start(directory: Path, *, threads: int, device: str) -> TokenRunner:
    """Open the exported model."""
    need(__name__, REQUIRES)
    need_device(__name__, DEVICES, device)
    return token_runner(directory, *optimum_client.start(directory, "model.onnx", threads=threads))
