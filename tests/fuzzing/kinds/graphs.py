"""ONNX graphs: endless work, tensors that double, answers that fit no labels, other names."""

from __future__ import annotations

from random import Random

import onnx

from tests.support.odd_graphs import BOMBS, OTHER_NAMES, WRONG_ANSWERS

FILES = "*.onnx"


def change(content: bytes, draw: Random) -> bytes:
    model = onnx.load_from_string(content)
    draw.choice((*BOMBS, *WRONG_ANSWERS, *OTHER_NAMES))(model.graph)
    return model.SerializeToString()
