"""NumPy, imported when it is first used: the light installation has none, and its predictions need none."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from compress.errors import MissingPackage

if TYPE_CHECKING:
    import numpy as np
else:

    class _OnFirstUse(ModuleType):
        def __getattr__(self, name: str) -> Any:
            try:
                module = importlib.import_module("numpy")
            except ModuleNotFoundError as error:
                raise MissingPackage(error) from None
            vars(self).update(vars(module))
            return getattr(module, name)

    np = _OnFirstUse("numpy")

__all__ = ["np"]
