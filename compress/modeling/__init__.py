"""Model classes of our own. Each file imports only torch and transformers, because it travels in model directories."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def input_names(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the inputs that a model makes use of; a single segment (RoBERTa) is no use of ``token_type_ids``."""
    has_segments = getattr(model.config, "type_vocab_size", 0) > 1
    if has_segments and "token_type_ids" in inspect.signature(model.forward).parameters:
        return ("input_ids", "attention_mask", "token_type_ids")
    return ("input_ids", "attention_mask")
