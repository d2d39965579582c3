"""Small student networks, a folder each; the folder's name is the name of the architecture.

``__init__.py`` has what a search tries (``SPACE``) and its turn among the architectures (``RANK``), ``model.py`` the
classes, ``build.py`` how one starts from a teacher (a plug-in of the kind ``architectures``), and ``graph.py`` its ONNX
graph. Beside the folders is what all share. ``small.py`` and ``model.py`` import only torch, transformers and each
other: they travel in model directories.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.models.modeling import ENDINGS
from compress.tasks import of_network

if TYPE_CHECKING:
    from compress.models.networks.small import SmallModel

NAMES = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/model.py")))
NATIVE = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/native.py")))
TYPE = "compress-"


def part(name: str, module: str = "") -> Any:
    """Return a network's package, or one of its modules."""
    return importlib.import_module(f"{__name__}.{name}.{module}".rstrip("."))


def model_classes(name: str) -> list[type[SmallModel]]:
    """Return the classes of a network: the classifier of texts and, where there is one, the tagger."""
    members = vars(part(name, "model")).values()
    return [one for one in members if isinstance(one, type) and one.__name__.endswith(ENDINGS)]


def is_network(config: Mapping[str, Any]) -> bool:
    """Tell by its ``config.json`` whether a model is one of these networks."""
    return str(config.get("model_type", "")).removeprefix(TYPE) in NAMES


def name_of(model: SmallModel) -> str:
    return str(model.config.model_type).removeprefix(TYPE)


def write_code(model: SmallModel, directory: Path) -> None:
    """Write a network's modelling files, and name them in its config.

    ``from_pretrained(directory, trust_remote_code=True)`` then opens it where ``compress`` is not installed.
    """
    name, folder = name_of(model), Path(__file__).parent
    directory.mkdir(parents=True, exist_ok=True)
    code = (folder / name / "model.py").read_text(encoding="utf-8")
    (directory / f"{name}.py").write_text(code.replace("from ..small import", "from .small import"), encoding="utf-8")
    shutil.copyfile(folder / "small.py", directory / "small.py")
    classes = {"AutoConfig": type(model.config), of_network(model).auto_class: type(model)}
    model.config.auto_map = {auto: f"{name}.{one.__name__}" for auto, one in classes.items()}
