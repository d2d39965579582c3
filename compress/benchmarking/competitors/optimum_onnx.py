"""optimum's own ONNX export in ONNX Runtime, float32, in an environment of its own.

``ORTModelForSequenceClassification.from_pretrained(directory, export=True)``. optimum-onnx needs transformers 4, so it
takes stock architectures only.

Source: https://huggingface.co/docs/optimum-onnx/onnxruntime/quickstart
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compress.benchmarking.competitors import _optimum_client, link_model
from compress.data.examples import Example
from compress.inference.token_runner import TokenRunner
from compress.models.model_dir import ModelDir

REQUIRES = _optimum_client.REQUIRES
ENVIRONMENT = _optimum_client.ENVIRONMENT
DEVICES = _optimum_client.DEVICES


def build(directory: Path, model: ModelDir, train: Sequence[Example], gold: np.ndarray | None) -> None:
    """Export the model."""
    link_model(directory, model, weights=False)
    _optimum_client.export_onnx(model, directory)
    _optimum_client.fit_transformers_4(directory)


def start(directory: Path, *, threads: int, device: str) -> TokenRunner:
    """Open the exported model."""
    return _optimum_client.open_onnx(directory, "model.onnx", threads)
