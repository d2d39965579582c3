"""Make transformers know the model types of this project.

``AutoModelForSequenceClassification.from_pretrained`` then opens every directory that ``compress`` writes, and
``save_pretrained`` puts the modelling file into the directory. How stock models load is not touched.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.modeling.bilstm import BiLSTMForSequenceClassification
from compress.modeling.pruned import MODEL_CLASSES


def _register(model_class: type[Any]) -> None:
    config_class = model_class.config_class
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    AutoModelForSequenceClassification.register(config_class, model_class, exist_ok=True)
    config_class.register_for_auto_class()
    model_class.register_for_auto_class("AutoModelForSequenceClassification")


_register(BiLSTMForSequenceClassification)
for _model_class in MODEL_CLASSES.values():
    _register(_model_class)
