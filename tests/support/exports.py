"""Graphs of tiny models that torch has exported before, in any process of a run of tests: an export takes seconds.

Models of one structure differ in their weights only, and so do their graphs: these are put into the graph of one.
``compress`` compares every graph with the model in any case. The folder COMPRESS_TEST_GRAPHS keeps graphs for later
runs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

import compress
from tests.support import GRAPHS_FOLDER, MODELS_FOLDER

PACKAGE = Path(compress.__file__).parent
LARGEST_BYTES = 2_000_000
# What a graph does not depend on.
IGNORED = frozenset(
    """
    _name_or_path architectures auto_map dtype id2label label2id problem_type transformers_version
    attention_probs_dropout_prob classifier_dropout hidden_dropout_prob
    """.split()
)
Weights = dict[str, np.ndarray]
Sources = dict[str, tuple[str, bool]]  # of each tensor of a graph the weight that it is, and whether it is turned


def exporting_once(export: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.onnx.export`` for modules that have a ``model``, tracing each structure once."""

    def once(module: Any, *given: Any, **named: Any) -> Any:
        model = module.model
        parameters = dict(model.named_parameters())
        weights = _arrays({**parameters, **dict(model.named_buffers())})
        known = os.environ.get(GRAPHS_FOLDER) or os.environ.get(MODELS_FOLDER)
        if known is None or sum(array.nbytes for array in weights.values()) > LARGEST_BYTES:
            return export(module, *given, **named)
        config = json.dumps({k: v for k, v in model.config.to_dict().items() if k not in IGNORED}, sort_keys=True)
        replaced = [name for name, part in model.named_modules() if "forward" in vars(part)]
        structure = repr((type(model), config, model.config._attn_implementation, replaced, named, _version()))
        drawn = {name: one for name, one in parameters.items() if one.dtype.is_floating_point and one.numel() > 1}
        folder = Path(known)
        alike = folder / f"{_digest(structure, _likeness(weights, drawn))}.onnx"
        same = folder / f"{_digest(structure, {name: _content(array) for name, array in weights.items()})}.onnx"
        computed = folder / f"{_digest(structure)}.computed"  # its graphs hold such tensors
        if not alike.is_file() and not same.is_file() and not computed.exists():
            with _drawn(drawn):
                graph = export(module, *given, **named).model_proto
                sources = _sources(graph, weights | _arrays(drawn))
            if sources is None:
                computed.touch()
            else:
                _write(alike, graph, sources)
        if alike.is_file():
            return SimpleNamespace(model_proto=_filled(alike, weights))
        if not same.is_file():
            _write(same, export(module, *given, **named).model_proto, None)
        return SimpleNamespace(model_proto=onnx.load(str(same)))

    return once


@functools.cache
def _version() -> str:
    """Return a digest of what makes a graph of a model: graphs of another state of it are not looked at."""
    files = sorted(path for folder in ("exporting", "models") for path in (PACKAGE / folder).rglob("*.py"))
    libraries = [(name, metadata.version(name)) for name in ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")]
    return _digest(libraries, [path.read_bytes() for path in (*files, Path(__file__))])


def _arrays(tensors: Mapping[str, Any]) -> Weights:
    return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}


@contextmanager
def _drawn(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Give parameters other values, no two alike, so that a graph's tensors say which they are.

    Of a model as it was initialised all biases are zeros; trained, it would be another to trace.
    """
    generator = torch.Generator().manual_seed(0)
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]


def _write(path: Path, graph: onnx.ModelProto, sources: Sources | None) -> None:
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


def _sources(graph: onnx.ModelProto, weights: Weights) -> Sources | None:
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


def _likeness(weights: Weights, drawn: Collection[str]) -> dict[str, Any]:
    """Return of each weight its shape and, if it was not drawn, what a graph may depend on.

    That is the first weight of the same content, and its value if it has one only.
    """
    first: dict[str, str] = {}
    return {
        name: (
            array.shape,
            name in drawn
            or (
                first.setdefault(_content(array), name),
                float(array.flat[0]) if array.size and (array == array.flat[0]).all() else None,
                _content(array) if array.dtype.kind != "f" else None,
            ),
        )
        for name, array in weights.items()
    }


def _content(array: np.ndarray) -> str:
    return _digest(array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest())


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
