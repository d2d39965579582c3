"""NumPy and PyTorch, imported when they are first used.

The light installation has neither, and its predictions need none; an ONNX model needs no PyTorch.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from compress.errors import MissingPackage

if TYPE_CHECKING:
    import numpy as np
    import torch
else:

    class _OnFirstUse(ModuleType):
        def __getattr__(self, name: str) -> Any:
            try:
                module = importlib.import_module(self.__name__)
            except ModuleNotFoundError as error:
                raise MissingPackage(error) from None
            vars(self).update(vars(module))
            return getattr(module, name)

    np, torch = _OnFirstUse("numpy"), _OnFirstUse("torch")

__all__ = ["np", "torch"]
