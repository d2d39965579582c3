"""Pretrained encoders as classifiers: their own weights, and a fresh head of the labels that are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from compress.artifact import ModelDir
from compress.errors import CompressError
from compress.modeling import PROBLEM_TYPES, auto_class

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD_PARTS = {"classifier", "pre_classifier", "pooler"}


def load_classifier(encoder: ModelDir, labels: Sequence[str], task: str) -> PreTrainedModel:
    """Open an encoder with a head of these labels: its own where it has one of as many classes, else a random one.

    Args:
        task: ``"classification"``, ``"regression"``, or ``"tagging"`` for a head that answers every token.

    Raises:
        CompressError: more than the head would start at random.
    """
    from transformers import AutoConfig

    import compress.modeling.registration  # noqa: F401  registers the model types of this project

    config = AutoConfig.from_pretrained(
        encoder.path,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={name: index for index, name in enumerate(labels)},
        problem_type=PROBLEM_TYPES[task],
    )
    model, loaded = auto_class(task).from_pretrained(
        encoder.path,
        config=config,
        dtype="float32",
        ignore_mismatched_sizes=True,  # a head of other classes
        output_loading_info=True,
    )
    _check_loaded(encoder, loaded)
    return cast("PreTrainedModel", model)


def _check_loaded(encoder: ModelDir, loaded: Mapping[str, Any]) -> None:
    """Refuse an encoder of which more than the head would start at random."""
    mismatched = [entry[0] if isinstance(entry, tuple) else entry for entry in loaded.get("mismatched_keys", ())]
    missing = [*loaded.get("missing_keys", ()), *mismatched]
    fresh = [key for key in missing if not set(key.split(".")) & HEAD_PARTS]
    if fresh:
        raise CompressError(
            f"{encoder.path} lacks weights of its own architecture ({len(fresh)}, such as {fresh[0]}), which would "
            "start at random; save the encoder again with save_pretrained"
        )
