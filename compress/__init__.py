"""Distil, prune and quantize text classifiers, and measure what was lost and what was won.

``import compress`` is light: torch and transformers are imported by the function that needs them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from compress.errors import CompressError

__version__ = "0.1.0"

_LAZY = {
    "ModelDir": "compress.artifact",
    "Pruning": "compress.recipes",
    "benchmark": "compress.measure",
    "check": "compress.gate",
    "distill": "compress.distill",
    "export": "compress.export",
    "finetune": "compress.finetune",
    "head_importance": "compress.importance",
    "head_study": "compress.head_study",
    "label": "compress.label",
    "load": "compress.artifact",
    "pretrain": "compress.pretrain",
    "prune": "compress.prune",
    "quantize": "compress.quantize",
    "replay": "compress.replay",
    "report": "compress.report",
    "run": "compress.run",
}

__all__ = ["CompressError", "__version__", *sorted(_LAZY)]

if TYPE_CHECKING:
    from compress.artifact import ModelDir, load
    from compress.distill import distill
    from compress.export import export
    from compress.finetune import finetune
    from compress.gate import check
    from compress.head_study import head_study
    from compress.importance import head_importance
    from compress.label import label
    from compress.measure import benchmark
    from compress.pretrain import pretrain
    from compress.prune import prune
    from compress.quantize import quantize
    from compress.recipes import Pruning
    from compress.replay import replay
    from compress.report import report
    from compress.run import run


class _Package(ModuleType):
    """Keep ``compress.distill`` the function: importing the stage module of that name must not replace it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'compress' has no attribute {name!r}")
        value = getattr(importlib.import_module(_LAZY[name]), name)
        setattr(self, name, value)
        return value


sys.modules[__name__].__class__ = _Package
