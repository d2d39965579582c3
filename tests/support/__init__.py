"""What several tests share: tiny models and data, and where the repository is."""

import gc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

# The variable that names the folder of tiny models, which all processes of a run of tests share.
MODELS_FOLDER = "COMPRESS_TEST_MODELS"
# The variable that names the folder of their graphs, where later runs are to find these.
GRAPHS_FOLDER = "COMPRESS_TEST_GRAPHS"


def keep_collector_off_what_stays() -> None:
    """Let the garbage collector leave alone what is there now: all of torch, which it would walk again and again.

    In a forked process it would copy each page that it walks, too: several seconds for a command of one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def module_from(path: Path) -> ModuleType:
    """Import a Python file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # its dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


def torch_as_it_is(model: Any, *_: Any, **__: Any) -> tuple[str, str]:
    """Stand in for ``labelling.label.choose_runtime``: exporting a tiny model takes longer than all the rest."""
    return "onnxruntime" if model.is_onnx else "torch", "cpu"
