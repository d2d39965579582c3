"""The native library: small students in C, text in and logits out in one call.

It reads the container of a directory (``model.native``). The function that ``start`` returns is of token ids, as those
of other runtimes are, and computes the network alone, row by row; texts are read by :class:`NativeRunner`.
"""

from pathlib import Path

import numpy as np

from compress.errors import Unavailable
from compress.inference.batching import Run, TokenArrays
from compress.inference.native import NativeRunner
from compress.models.manifest import MANIFEST_NAME, NATIVE_NAME, Manifest

OPENS = "onnx"
DEVICES = ("cpu",)
TOLERANCE = 1e-3  # a logit x may be off by 0.001 (1 + |x|): a layer of int8 networks is of int16


def start(directory: Path, *, threads: int, device: str) -> Run:
    if not (directory / NATIVE_NAME).is_file():
        noted = Manifest.read(directory / MANIFEST_NAME).notes.get("native", "it was exported without one")
        raise Unavailable(f"it has no {NATIVE_NAME} ({noted}); use --runtime onnxruntime")
    runner = NativeRunner(directory)

    def run(arrays: TokenArrays) -> np.ndarray:
        ids, lengths = arrays["input_ids"], arrays["attention_mask"].sum(axis=1)
        rows = [runner.logits_of_ids(row[:length]) for row, length in zip(ids, lengths, strict=True)]
        if runner.by_word:  # answers tokens
            rows = [np.pad(row, ((0, ids.shape[1] - len(row)), (0, 0))) for row in rows]
        return np.stack(rows)

    return run
