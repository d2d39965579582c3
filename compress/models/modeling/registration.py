"""Register the model types of this project with transformers: ``compress.register_models()``.

``AutoModelForSequenceClassification.from_pretrained``, or that for token classification, then opens every directory
that ``compress`` writes. How stock models load is not touched.
"""

from functools import cache
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig

from compress import plugins, tasks
from compress.errors import CompressError
from compress.models import networks
from compress.models.modeling.pruned import MODEL_CLASSES, TAGGER_CLASSES
from compress.progress import logger


@cache
def register_models() -> None:
    """Let the Auto classes of transformers open the model types of this project."""
    small: list[type[Any]] = [one for name in networks.NAMES for one in networks.model_classes(name)]
    pruned = [*MODEL_CLASSES.values(), *TAGGER_CLASSES.values()]
    for model_class in small + pruned:
        config_class = model_class.config_class
        opener = tasks.of_network(model_class).auto_model()
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        opener.register(config_class, model_class, exist_ok=True)
        if model_class in pruned:  # save_pretrained then copies pruned.py and families.py
            config_class.register_for_auto_class()
            model_class.register_for_auto_class(opener.__name__)


def is_known(model_type: object) -> bool:
    """Tell whether transformers can build a model type.

    For one that it does not know, the architectures of other packages are imported, which may register it.
    """
    register_models()
    faults = []
    for name in plugins.names("architectures") if model_type not in CONFIG_MAPPING else ():
        try:
            plugin = plugins.find("architectures", name)
            if not plugin.is_own:
                plugin.load()
        except CompressError as error:  # another may know it
            faults.append(error)
    if faults and model_type not in CONFIG_MAPPING:
        logger.warning("%s", "; ".join(map(str, faults)))
    return model_type in CONFIG_MAPPING
