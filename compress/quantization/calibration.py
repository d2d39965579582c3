"""Calibration on training rows: ranges of activations, and the sensitivity of each layer."""

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from compress.data.examples import Example
from compress.data.label_encoding import encode_gold
from compress.data.tokenization import encode, maximum_length, pad
from compress.models.model_dir import ModelDir
from compress.quantization.fake_layers import FakeLayers, quantized_modules
from compress.quantization.hessian_sensitivity import PART_ROWS, PARTS, answers_of, layer_sensitivities

CALIBRATION_ROWS, CALIBRATION_BATCH_ROWS = 512, 32
# Of the moving average over 16 batches: an outlier of the first one has lost 80% of its weight at the end.
_DECAY = 0.9


def observed_ranges(source: ModelDir, rows: Sequence[Example]) -> dict[str, float]:
    """Return the largest magnitude of the inputs of every linear layer: a moving average over batches of rows."""
    model = source.load()
    modules = quantized_modules(model)
    layers = FakeLayers(modules, lambda _, weight: lambda found, __: found, activation_bits=8, decay=_DECAY)
    for module in modules.values():
        if isinstance(module, nn.Linear):
            module.train()  # it observes; nothing else about it depends on the mode
    with torch.no_grad():
        for inputs in _batches(source, _sample(rows, CALIBRATION_ROWS), CALIBRATION_BATCH_ROWS):
            model(**inputs)
    return layers.ranges()


def measured_sensitivities(source: ModelDir, rows: Sequence[Example]) -> list[float]:
    """Return how sensitive each encoder layer of a model is on labelled rows; for tagging on the model's own answers.

    Raises:
        CompressError: labels that are not the model's, or a model that is no transformer.
    """
    model, sample = source.load(), _sample(rows, PARTS * PART_ROWS)
    batches = list(_batches(source, sample, PART_ROWS))
    if source.task == "tagging":
        answers = [answers_of(model, inputs) for inputs in batches]
    else:
        gold = torch.tensor(encode_gold(sample, source.labels, task=source.task, name="train"))
        answers = list(gold.split(PART_ROWS))
    return layer_sensitivities(model, list(zip(batches, answers, strict=True)))


def _sample(rows: Sequence[Example], count: int) -> list[Example]:
    return random.Random(0).sample(list(rows), min(count, len(rows)))


def _batches(source: ModelDir, rows: Sequence[Example], size: int) -> Iterator[dict[str, Tensor]]:
    tokenizer = source.load_tokenizer()
    limit = maximum_length(tokenizer, source.config)
    for start in range(0, len(rows), size):
        tokens = encode(tokenizer, rows[start : start + size], limit, task=source.task)
        tokens.pop("words", None)
        count = len(tokens["input_ids"])
        padded = pad([{key: tokens[key][row] for key in tokens} for row in range(count)], tokenizer.pad_token_id or 0)
        yield {key: torch.from_numpy(values) for key, values in padded.items()}
