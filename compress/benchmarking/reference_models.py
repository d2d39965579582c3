"""Reference models: published architectures with random weights, for scale.

Published speed-ups are against BERT-base or BERT-large, and a model is as fast with random weights as with trained
ones. A reference model has the teacher's vocabulary and labels, so that it reads the same rows; it has no quality.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compress.recipes.reference_shapes import REFERENCE_MODELS

if TYPE_CHECKING:
    from compress.models.model_dir import ModelDir


POSITIONS = 512
SEED = 0


def build_reference_model(name: str, directory: Path, teacher: ModelDir) -> None:
    """Write a reference model with the tokenizer and labels of a teacher; the same weights every time."""
    import torch
    from transformers import AutoConfig

    from compress.data.tokenization import maximum_length
    from compress.models.modeling import PROBLEM_TYPES, auto_class
    from compress.models.saving import save_model

    tokenizer = teacher.load_tokenizer()
    model_type, shape = REFERENCE_MODELS[name]
    config = AutoConfig.for_model(
        model_type,
        vocab_size=max(len(tokenizer), int(teacher.config.get("vocab_size", 0))),
        max_position_embeddings=max(POSITIONS, maximum_length(tokenizer, teacher.config)),
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(teacher.labels)),
        label2id={label: index for index, label in enumerate(teacher.labels)},
        problem_type=PROBLEM_TYPES[teacher.task],
        **shape,
    )
    torch.manual_seed(SEED)
    save_model(auto_class(teacher.task).from_config(config), tokenizer, directory)
