"""Students that can be built. Importing this package also registers the model types of this project."""

from compress.models.modeling.registration import register_models

register_models()
