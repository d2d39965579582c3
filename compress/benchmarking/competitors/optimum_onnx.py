"""optimum's own ONNX export in ONNX Runtime, float32, in an environment of its own.

``ORTModelForSequenceClassification.from_pretrained(directory, export=True)``. optimum-onnx needs transformers 4, so it
takes stock architectures only.

Source: https://huggingface.co/docs/optimum-onnx/onnxruntime/quickstart
"""

from pathlib import Path

from compress.benchmarking.competitors import link_model
from compress.benchmarking.competitors._optimum_client import (  # noqa: F401  constants of a competitor
    DEVICES,
    ENVIRONMENT,
    REQUIRES,
    export_onnx,
    fit_transformers_4,
    open_onnx,
)
from compress.inference.runners import LoadedModel
from compress.models.model_dir import Model


def build(directory: Path, model: Model) -> None:
    link_model(directory, model, weights=False)
    export_onnx(model, directory)
    fit_transformers_4(directory)


def start(directory: Path, *, threads: int, device: str) -> LoadedModel:
    return open_onnx(directory, "model.onnx", threads)
