"""Students that can be built. Importing this package also registers the model types of this project."""

from __future__ import annotations

import compress.models.modeling.registration  # noqa: F401
