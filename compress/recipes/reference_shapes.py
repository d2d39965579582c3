"""Shapes of published architectures that the benchmark measures as reference models."""

from collections.abc import Mapping
from typing import Any

from compress.errors import CompressError, did_you_mean

# Name -> model type and what differs from the defaults of its config.
# Lan et al. (2020), table 1; Devlin et al. (2019), section 3; Sanh et al. (2019), section 2.
REFERENCE_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "albert-base": (
        "albert",
        {
            "embedding_size": 128,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
    ),
    # Its twelve layers are one, so that it takes 0.9 GB of the benchmark's scratch, less than bert-large.
    "albert-xxlarge": (
        "albert",
        {
            "embedding_size": 128,
            "hidden_size": 4096,
            "num_hidden_layers": 12,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
        },
    ),
    "bert-base": (
        "bert",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "bert-large": (
        "bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "distilbert": ("distilbert", {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}),
}


def check_reference_model(name: str) -> str:
    """Return a reference model's name as a line shows it; ``-`` and ``_`` are the same.

    Raises:
        CompressError: there is none of that name.
    """
    key = name.replace("_", "-")
    if key not in REFERENCE_MODELS:
        raise CompressError(
            f"unknown reference model {name!r}; there is {', '.join(REFERENCE_MODELS)}."
            f"{did_you_mean(key, REFERENCE_MODELS)}"
        )
    return key
