"""The graphs of small networks, which each network's folder writes node by node (:mod:`compress.models.networks`)."""

from pathlib import Path

from compress.exporting.onnx_graph import write_graph
from compress.models.networks import NAMES, TYPE, name_of, part
from compress.models.networks.small import SmallModel

MODEL_TYPES = tuple(f"{TYPE}{name}" for name in NAMES)


def export(model: SmallModel, path: Path) -> None:
    write_graph(part(name_of(model), "graph").graph(model), path)
