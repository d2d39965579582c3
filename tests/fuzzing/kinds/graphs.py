"""ONNX graphs: endless work, tensors that double, answers that fit no labels, other names; and the layout of others."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import onnx

from tests.fuzzing.kinds import Use
from tests.support.odd_graphs import BOMBS, OTHER_NAMES, WRONG_ANSWERS

FILES = "*.onnx"
GRAPH = "foreign/onnx/model_quantized.onnx"
USES = (
    Use("predict --model foreign --data validation.jsonl", (GRAPH, GRAPH, "foreign/config.json"), 2),
    Use("quantize --model foreign -o out --device cpu --threads 1", (GRAPH, "foreign/config.json"), 0.5),
)


def change(content: bytes, draw: Random) -> bytes:
    model = onnx.load_from_string(content)
    draw.choice((*BOMBS, *WRONG_ANSWERS, *OTHER_NAMES))(model.graph)
    return model.SerializeToString()


def write_inputs(folder: Path) -> None:
    """Write a directory without a manifest whose graph lies where Optimum lays it."""
    shutil.copytree(folder / "onnx", folder / "foreign", ignore=shutil.ignore_patterns("*.onnx", "compress.json"))
    (folder / "foreign" / "onnx").mkdir()
    shutil.copy(folder / "onnx" / "model.onnx", folder / GRAPH)
