"""The cosine of two texts in the pretrained encoder, before any fine-tuning: what the task adds to it.

The embedding of a text is the mean of the last hidden states of its tokens. The encoder is given, or the one that the
teacher's manifest names. Scores are one straight line of the cosine, or one logistic curve of classes, fitted to at
most 2,000 training rows.

Source: Reimers and Gurevych 2019, "Sentence-BERT" (arXiv:1908.10084), section 4.1.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.arrays import torch
from compress.benchmarking.baselines import _linear_head
from compress.data.examples import Example
from compress.data.tokenization import encode, maximum_length, pad
from compress.errors import CompressError, Unavailable
from compress.inference.runners import Runner
from compress.models.encoders import encoder_of, open_encoder
from compress.models.model_dir import Model
from compress.tasks import Task

RUNTIME = "torch"
READS_ENCODER = True
FITTED_ROWS = 2000
_BATCH = 64

Sides = list[dict[str, np.ndarray]]


def fit(
    directory: Path,
    train: Sequence[Example],
    gold: np.ndarray,
    task: Task,
    classes: int,
    teacher: Model,
    encoder: str = "",
) -> None:
    """Write the encoder and the line; raises :class:`Unavailable` where nothing names an encoder that is there."""
    try:
        found = open_encoder(encoder) if encoder else encoder_of(teacher)
    except CompressError as error:
        if encoder:
            raise
        missing = f"no pretrained encoder of {teacher.name} is named or found"
        raise Unavailable(f"{missing}; name it with 'compress benchmark --encoder'") from error
    found.body().save_pretrained(directory)
    found.tokenizer.save_pretrained(directory)
    prepare, cosines, _ = _open(directory)
    chosen = np.unique(np.linspace(0, len(train) - 1, min(len(train), FITTED_ROWS)).astype(int))
    parts = [chosen[first : first + _BATCH] for first in range(0, len(chosen), _BATCH)]
    features = np.concatenate([cosines(prepare([train[row] for row in part])) for part in parts])
    _linear_head.fit_linear_head(features, gold[chosen], task, classes).save(directory)


def _open(directory: Path) -> Any:
    """Return what makes arrays of pairs, the cosines ``[B, 1]`` of these, and the number of parameters."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    network = AutoModel.from_pretrained(directory).eval()
    longest = maximum_length(tokenizer, network.config.to_dict())
    names = {"input_ids", "attention_mask", "token_type_ids"} & {*tokenizer.model_input_names, "input_ids"}

    def prepare(examples: Sequence[Example]) -> Sides:
        sides = [[Example(text) for text in side] for side in _linear_head.sides(examples)]
        tokens = [encode(tokenizer, side, longest) for side in sides]
        rows = [[{key: ids[row] for key, ids in one.items()} for row in range(len(examples))] for one in tokens]
        return [pad(one, int(tokenizer.pad_token_id or 0)) for one in rows]

    def embedded(arrays: dict[str, np.ndarray]) -> Any:
        inputs = {name: torch.from_numpy(arrays[name]) for name in names if name in arrays}
        states, mask = network(**inputs).last_hidden_state, inputs["attention_mask"][..., None].float()
        return torch.nn.functional.normalize((states * mask).sum(dim=1), dim=-1)

    def cosines(sides: Sides) -> np.ndarray:
        with torch.inference_mode():
            one, other = map(embedded, sides)
            return np.asarray((one * other).sum(dim=1, keepdim=True).numpy())

    return prepare, cosines, sum(weight.numel() for weight in network.parameters())


def start(directory: Path, *, threads: int, device: str) -> Runner:
    torch.set_num_threads(threads)
    prepare, cosines, parameters = _open(directory)
    head = _linear_head.Head.load(directory)
    return Runner(prepare, lambda sides: head(cosines(sides)), parameters=parameters + head.parameters)
