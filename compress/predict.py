"""Stage: use a model, torch or ONNX, in the runtime that opens its directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress import plugins
from compress.artifact import ModelDir
from compress.data import Example
from compress.inference import logits_of
from compress.measuring.cores import available_cores
from compress.tokens import maximum_length

Answer = dict[str, Any]


def predictor(
    model: ModelDir | str | Path, *, device: str = "auto", threads: int = 0
) -> Callable[[Sequence[Example]], list[Answer]]:
    """Return a function from examples to answers ``{"label", "probability"}``, or ``{"score"}`` for regression."""
    from compress.training import resolve_device

    opened = model if isinstance(model, ModelDir) else ModelDir.open(model)
    start = plugins.find("runtimes", "onnxruntime" if opened.is_onnx else "torch").function
    run = start(opened.path, threads=threads or len(available_cores()), device=resolve_device(device))
    tokenizer = opened.load_tokenizer()
    limit = maximum_length(tokenizer, opened.config)

    def answers(examples: Sequence[Example]) -> list[Answer]:
        logits = logits_of(examples, run, tokenizer, max_length=limit)
        if opened.task == "regression":
            return [{"score": round(float(row[0]), 4)} for row in logits]
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        return [
            {"label": opened.labels[row.argmax()], "probability": round(float(row.max()), 4)} for row in probabilities
        ]

    return answers
