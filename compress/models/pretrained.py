"""Pretrained encoders as classifiers: their own weights, and a fresh head of the labels that are wanted; or their body
in a student that has a head.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from compress.errors import refuse
from compress.models.loading import load_config, load_network, unfit
from compress.models.model_dir import ModelDir
from compress.tasks import Task

HEAD_PARTS = {"classifier", "head", "pre_classifier", "pooler"}


def load_classifier(encoder: ModelDir, labels: Sequence[str], task: Task) -> PreTrainedModel:
    """Open an encoder with a head of these labels: its own where it has one of as many classes, else a random one.

    Raises:
        CompressError: more than the head would start at random.
    """
    config = load_config(encoder.path, num_labels=len(labels), **task.head_settings(labels))
    model, loaded = load_network(task.auto_model(), encoder.path, config)
    _check_loaded(encoder, loaded)
    return model


def load_body(student: PreTrainedModel, encoder: ModelDir) -> None:
    """Give a student the embeddings and layers of an encoder of its own family and shape; its head stays as it is.

    Raises:
        CompressError: another family or shape, or weights of the encoder are missing.
    """
    body, loaded = load_network(AutoModel, encoder.path)
    _check_loaded(encoder, loaded)
    ours, theirs = (
        {name: value for name, value in base.state_dict().items() if not set(name.split(".")) & HEAD_PARTS}
        for base in (student.base_model, body)
    )
    has, wants = (
        {"type": model.config.model_type, **{name: list(value.shape) for name, value in weights.items()}}
        for model, weights in ((body, theirs), (student, ours))
    )
    for name in {**has, **wants}:
        own, wanted = has.get(name, "absent"), wants.get(name, "absent")
        refuse(
            (
                own != wanted,
                f"{encoder.path} has another shape than this student ({name} is {own} and not {wanted}); make it with "
                "'compress pretrain' from the encoder of this teacher, for the same student",
            )
        )
    student.base_model.load_state_dict(theirs, strict=False)


def check_vocabulary(encoder: ModelDir, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuse a checkpoint that would take the teacher's token ids for other pieces."""
    own, theirs = encoder.tokenizer.get_vocab(), tokenizer.get_vocab()
    different = sum(own.get(piece) != index for piece, index in theirs.items())
    refuse(
        (
            own != theirs,
            f"{encoder.path} has another vocabulary than the teacher ({different} of the teacher's {len(theirs)} "
            "pieces are absent or have another number), and a student reads the teacher's token ids; choose a "
            "checkpoint of the teacher's vocabulary, or fine-tune this one with 'compress finetune --teacher ...'",
        )
    )


def _check_loaded(encoder: ModelDir, loaded: Mapping[str, Any]) -> None:
    """Refuse an encoder of which more than the head would start at random."""
    fresh = [key for key in unfit(loaded) if not set(key.split(".")) & HEAD_PARTS]
    refuse(
        (
            fresh,
            f"{encoder.path} lacks weights of its own architecture ({len(fresh)}, such as {''.join(fresh[:1])}), which "
            "would start at random; save the encoder again with save_pretrained",
        )
    )
