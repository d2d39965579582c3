"""Model classes of our own. Each file imports only torch and transformers, because it travels in model directories."""

from collections.abc import Mapping

from compress.tasks import default, everything

# What a manifest calls an encoder that has no task yet, and what opens it.
ENCODERS: Mapping[str, str] = {"fill-mask": "AutoModelForMaskedLM", "feature-extraction": "AutoModel"}
ENDINGS = ("ForSequenceClassification", "ForTokenClassification")  # of the names of classes that have a task


def auto_class(task: str) -> str:
    """Return the name of the class of transformers that opens what a manifest says is of a task."""
    return ENCODERS.get(task) or everything().get(task, default()).auto_class
