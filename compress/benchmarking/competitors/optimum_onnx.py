"""optimum's own ONNX export in ONNX Runtime, float32, in an environment of its own.

``ORTModelForSequenceClassification.from_pretrained(directory, export=True)``. optimum-onnx needs transformers 4, so it
takes stock architectures only.

Source: https://huggingface.co/docs/optimum-onnx/onnxruntime/quickstart
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compress.benchmarking.competitors import _optimum_client, link_model, require, token_runner
from compress.data.examples import Example
from compress.inference.token_runner import TokenRunner
from compress.models.model_dir import ModelDir

REQUIRES = _optimum_client.REQUIRES
ENVIRONMENT = _optimum_client.ENVIRONMENT
DEVICES = ("cpu",)
NEEDS_TRAIN = False


def build(directory: Path, model: ModelDir, train: Sequence[Example], gold: np.ndarray | None) -> None:
    """Export the model."""
    require(__name__)
    link_model(directory, model, weights=False)
    with tempfile.TemporaryDirectory() as scratch:
        link_model(Path(scratch), model, weights=True)
        _optimum_client.fit_transformers_4(Path(scratch))
        _optimum_client.export_onnx(Path(scratch), directory)
    _optimum_client.fit_transformers_4(directory)


def start(directory: Path, *, threads: int, device: str) -> TokenRunner:
    """Open the exported model."""
    require(__name__, device)
    return token_runner(directory, *_optimum_client.start(directory, "model.onnx", threads=threads))
