"""Model classes of our own. Each file imports only torch and transformers, because it travels in model directories."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# What transformers calls a task in a config; tagging has no name of its own there.
PROBLEM_TYPES: Mapping[str, str | None] = {
    "classification": "single_label_classification",
    "regression": "regression",
    "tagging": None,
}
# What opens models of a task; those of all others are classifiers of text. The last two come before any task.
AUTO_CLASSES: Mapping[str, str] = {
    "tagging": "AutoModelForTokenClassification",
    "fill-mask": "AutoModelForMaskedLM",
    "feature-extraction": "AutoModel",
}
CLASSIFIER = "AutoModelForSequenceClassification"
TAGGER = "ForTokenClassification"  # how the names of classes end that answer every token
ENDINGS = ("ForSequenceClassification", TAGGER)


def is_tagger(model: "PreTrainedModel") -> bool:
    """Tell whether a model answers every token, ``[B, T, C]``, instead of a text as a whole, ``[B, C]``."""
    return type(model).__name__.endswith(TAGGER)


def auto_class(task: str) -> Any:
    """Return the class of transformers that opens models of a task."""
    import transformers

    return getattr(transformers, AUTO_CLASSES.get(task, CLASSIFIER))


def input_names(model: "PreTrainedModel") -> tuple[str, ...]:
    """Return the inputs that a model makes use of; a single segment (RoBERTa) is no use of ``token_type_ids``."""
    has_segments = getattr(model.config, "type_vocab_size", 0) > 1
    if has_segments and "token_type_ids" in inspect.signature(model.forward).parameters:
        return ("input_ids", "attention_mask", "token_type_ids")
    return ("input_ids", "attention_mask")
