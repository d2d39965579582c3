"""Pretrained encoders as classifiers: their own weights, and a fresh head of the labels that are wanted; or their body
in a student that has a head.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from compress.errors import CompressError
from compress.models.model_dir import ModelDir
from compress.models.modeling import PROBLEM_TYPES, auto_class
from compress.models.modeling.registration import register_models

HEAD_PARTS = {"classifier", "head", "pre_classifier", "pooler"}


def load_classifier(encoder: ModelDir, labels: Sequence[str], task: str) -> PreTrainedModel:
    """Open an encoder with a head of these labels: its own where it has one of as many classes, else a random one.

    Args:
        task: ``"classification"``, ``"regression"``, or ``"tagging"`` for a head that answers every token.

    Raises:
        CompressError: more than the head would start at random.
    """
    register_models()
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


def load_body(student: PreTrainedModel, encoder: ModelDir) -> None:
    """Give a student the embeddings and layers of an encoder of its own family and shape; its head stays as it is.

    Raises:
        CompressError: another family or shape, or weights of the encoder are missing.
    """
    body, loaded = AutoModel.from_pretrained(encoder.path, dtype="float32", output_loading_info=True)
    _check_loaded(encoder, loaded)
    ours, theirs = (
        {name: value for name, value in base.state_dict().items() if not set(name.split(".")) & HEAD_PARTS}
        for base in (student.base_model, body)
    )
    has: dict[str, Any] = {"type": body.config.model_type, **_shapes(theirs)}
    wants: dict[str, Any] = {"type": student.config.model_type, **_shapes(ours)}
    for name in {**has, **wants}:
        if has.get(name) != wants.get(name):
            raise CompressError(
                f"{encoder.path} has another shape than this student ({name} is {has.get(name, 'absent')} and not "
                f"{wants.get(name, 'absent')}); make it with 'compress pretrain' from the encoder of this teacher, for "
                "the same student"
            )
    student.base_model.load_state_dict(theirs, strict=False)


def _shapes(weights: Mapping[str, Any]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in weights.items()}


def check_vocabulary(encoder: ModelDir, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuse a checkpoint that would take the teacher's token ids for other pieces."""
    own, theirs = encoder.load_tokenizer().get_vocab(), tokenizer.get_vocab()
    if own != theirs:
        different = sum(own.get(piece) != index for piece, index in theirs.items())
        raise CompressError(
            f"{encoder.path} has another vocabulary than the teacher ({different} of the teacher's {len(theirs)} "
            "pieces are absent or have another number), and a student reads the teacher's token ids; choose a "
            "checkpoint of the teacher's vocabulary, or fine-tune this one with 'compress finetune --teacher ...'"
        )


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
