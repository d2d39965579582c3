"""Model classes of our own. Each file imports only torch and transformers, because it travels in model directories."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from compress.tasks import default, everything

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# What a manifest calls an encoder that has no task yet, and what opens it.
ENCODERS: Mapping[str, str] = {"fill-mask": "AutoModelForMaskedLM", "feature-extraction": "AutoModel"}
ENDINGS = ("ForSequenceClassification", "ForTokenClassification")  # of the names of classes that have a task


def auto_class(task: str) -> str:
    """Return the name of the class of transformers that opens what a manifest says is of a task."""
    return ENCODERS.get(task) or everything().get(task, default()).auto_class


def input_names(model: "PreTrainedModel") -> tuple[str, ...]:
    """Return the inputs that a model makes use of; a single segment (RoBERTa) is no use of ``token_type_ids``."""
    has_segments = getattr(model.config, "type_vocab_size", 0) > 1
    if has_segments and "token_type_ids" in inspect.signature(model.forward).parameters:
        return ("input_ids", "attention_mask", "token_type_ids")
    return ("input_ids", "attention_mask")
