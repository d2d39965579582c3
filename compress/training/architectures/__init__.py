"""Students that can be built. Importing this package also registers the model types of this project."""

from __future__ import annotations

from compress.models.modeling.registration import register_models

register_models()
