"""Graphs of tiny models that torch has exported before, in any process of a run of tests: an export takes seconds.

Models of one structure differ in their weights only, and so do their graphs: these are put into the graph of the first.
``compress`` compares every graph with the model in any case.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support import MODELS_FOLDER

LARGEST_BYTES = 2_000_000
# What a graph does not depend on.
IGNORED = frozenset(
    "_name_or_path architectures auto_map dtype id2label label2id problem_type transformers_version".split()
)
Weights = dict[str, np.ndarray]


def exporting_once(export: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.onnx.export`` for modules that have a ``model``, tracing each structure once."""

    def once(module: Any, *given: Any, **named: Any) -> Any:
        model = module.model
        weights = {name: tensor.detach().contiguous().numpy() for name, tensor in model.named_parameters()}
        weights |= {name: tensor.contiguous().numpy() for name, tensor in model.named_buffers()}
        known = os.environ.get(MODELS_FOLDER)
        if known is None or sum(array.nbytes for array in weights.values()) > LARGEST_BYTES:
            return export(module, *given, **named)
        config = json.dumps({k: v for k, v in model.config.to_dict().items() if k not in IGNORED}, sort_keys=True)
        replaced = [name for name, part in model.named_modules() if "forward" in vars(part)]
        structure = repr((type(model), config, model.config._attn_implementation, replaced, named))
        folder = Path(known)
        alike = folder / f"{_digest(structure, _likeness(weights))}.onnx"
        same = folder / f"{_digest(structure, {name: _content(array) for name, array in weights.items()})}.onnx"
        if not alike.is_file() and not same.is_file():
            graph = export(module, *given, **named).model_proto
            _write(same if _sources(graph, weights) is None else alike, graph, weights)
        if same.is_file():
            return SimpleNamespace(model_proto=onnx.load(str(same)))
        return SimpleNamespace(model_proto=_filled(alike, weights))

    return once


def _write(path: Path, graph: onnx.ModelProto, weights: Weights) -> None:
    sources = _sources(graph, weights)
    path.with_suffix(f".{os.getpid()}.json").write_text(json.dumps(sources))
    path.with_suffix(f".{os.getpid()}.json").replace(path.with_suffix(".json"))
    path.with_suffix(f".{os.getpid()}").write_bytes(graph.SerializeToString())
    path.with_suffix(f".{os.getpid()}").replace(path)


def _filled(path: Path, weights: Weights) -> onnx.ModelProto:
    """Return a known graph with these weights."""
    graph, sources = onnx.load(str(path)), json.loads(path.with_suffix(".json").read_text())
    for tensor in graph.graph.initializer:
        if tensor.name in sources:
            name, turned = sources[tensor.name]
            tensor.raw_data = (weights[name].T if turned else weights[name]).tobytes()
    return graph


def _sources(graph: onnx.ModelProto, weights: Weights) -> dict[str, tuple[str, bool]] | None:
    """Return which weight each tensor of a graph is, and whether turned; None where one was computed from weights."""
    known = {_content(array.T): (name, True) for name, array in weights.items() if array.ndim == 2}
    known |= {_content(array): (name, False) for name, array in weights.items()}
    found = {}
    for tensor in graph.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f" and array.size > 1:
            if _content(array) not in known or not tensor.raw_data:
                return None
            found[tensor.name] = known[_content(array)]
    return found


def _likeness(weights: Weights) -> dict[str, Any]:
    """Return of each weight its shape, the first weight of the same content, and its value if it has one only."""
    first: dict[str, str] = {}
    return {
        name: (
            array.shape,
            first.setdefault(_content(array), name),
            float(array.flat[0]) if array.size and (array == array.flat[0]).all() else None,
            _content(array) if array.dtype.kind != "f" else None,
        )
        for name, array in weights.items()
    }


def _content(array: np.ndarray) -> str:
    return _digest(array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest())


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
