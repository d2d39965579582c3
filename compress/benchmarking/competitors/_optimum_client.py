"""optimum-onnx as its documentation has it, inside an environment of its own with transformers 4.

This module runs there: of this package it needs only what imports no library.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from compress.benchmarking.competitors import link_model, token_runner
from compress.errors import Unavailable, first_line
from compress.inference.runners import LoadedModel
from compress.models.model_dir import Model

REQUIRES = {
    "optimum.onnxruntime": "optimum-onnx[onnxruntime]==0.1.0",
    "transformers.models.auto.tokenization_auto": "transformers==4.57.6",
    "torch": "torch==2.13.0",
}
ENVIRONMENT = "optimum"
DEVICES = ("cpu",)


def fit_transformers_4(directory: Path) -> None:
    """Change what transformers 5 writes into a tokenizer's settings and transformers 4 does not read.

    The class TokenizersBackend is unknown there, and a list of special tokens had another name.
    """
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if settings.get("tokenizer_class") in {None, "TokenizersBackend"}:
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    path.write_text(json.dumps(settings), encoding="utf-8")


def export_onnx(model: Model, directory: Path) -> None:
    """Export a torch model to ``directory/model.onnx``: ``from_pretrained(..., export=True)``."""
    from optimum.onnxruntime import ORTModelForSequenceClassification

    with tempfile.TemporaryDirectory() as source:
        link_model(Path(source), model, weights=True)
        fit_transformers_4(Path(source))
        try:
            exported: Any = ORTModelForSequenceClassification.from_pretrained(Path(source), export=True)
        except (ValueError, KeyError, ImportError, RuntimeError) as error:
            raise Unavailable(f"optimum cannot export this model: {first_line(error)}") from None
        exported.save_pretrained(directory)


def open_onnx(directory: Path, file_name: str, threads: int) -> LoadedModel:
    from onnxruntime import SessionOptions
    from optimum.onnxruntime import ORTModelForSequenceClassification

    options = SessionOptions()
    options.intra_op_num_threads = threads
    model: Any = ORTModelForSequenceClassification.from_pretrained(
        directory, file_name=file_name, provider="CPUExecutionProvider", session_options=options
    )

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(model(**inputs).logits)

    return token_runner(directory, run, list(model.input_names))
