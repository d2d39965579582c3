"""Write a torch model the same way everywhere: safetensors, config, tokenizer and, for our own types, the code."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.models.components import example_inputs, ffn_widths, has_units, heads_per_layer, input_names, kept_layers
from compress.models.loading import CROSS_ENCODER
from compress.models.modeling.registration import register_models
from compress.models.networks import write_code
from compress.models.networks.small import SmallModel

LAST_BITS = 1e-5


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: str | Path) -> None:
    """Write an ordinary Hugging Face directory: ``config.json``, ``model.safetensors`` and the tokenizer's files.

    A model of one of our own types also gets its modelling file and an ``auto_map``, so that
    ``from_pretrained(directory, trust_remote_code=True)`` opens it where ``compress`` is not installed.
    """
    for key in CROSS_ENCODER:  # what is trained answers as it is
        if hasattr(model.config, key):
            delattr(model.config, key)
    register_models()  # makes save_pretrained copy the modelling file of pruned types
    if isinstance(model, SmallModel):
        write_code(model, Path(directory))
    model.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)
    with tokenizer_settings(directory) as settings:  # a DistilBERT of a BERT teacher reads no segments
        used = [name for name in tokenizer.model_input_names if name in input_names(model)]
        if used != tokenizer.model_input_names:
            settings["model_input_names"] = used


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: str | Path) -> None:
    """Write a tokenizer that neither cuts nor pads by itself, whatever was asked of it last."""
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(directory)


@contextmanager
def tokenizer_settings(directory: str | Path) -> Iterator[dict[str, Any]]:
    """Read ``tokenizer_config.json``, and write it where the block changed it."""
    path = Path(directory, "tokenizer_config.json")
    before = path.read_text(encoding="utf-8")
    settings = json.loads(before)
    yield settings
    if settings != json.loads(before):
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def describe_architecture(model: PreTrainedModel) -> dict[str, Any]:
    """Return what a manifest says of a model: type, shape, number of weights, heads and FFN width of each layer.

    ``kept_layers`` are the original numbers of the layers, where some are gone.
    """
    config, shape = model.config, dict[str, Any]()
    if has_units(model):  # DistilBERT's config answers to these names too
        shape = {"layers": config.num_hidden_layers, "hidden_size": config.hidden_size}
    if getattr(config, "kept_layers", None) is not None:
        shape["kept_layers"] = kept_layers(model)
    return {
        "model_type": config.model_type,
        **shape,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "heads_per_layer": heads_per_layer(model),
        "ffn_per_layer": ffn_widths(model),
    }


def check_same(model: PreTrainedModel, reopened: PreTrainedModel) -> None:
    """Stop where a model that was written and opened again has other weights, or gives other outputs.

    Weights are the same to the bit. Outputs may differ in the last one: how some processors add up depends on where
    in memory the weights lie.
    """
    written, read = model.state_dict(), reopened.state_dict()
    inputs = example_inputs(model)
    with torch.no_grad():
        expected, found = model(**inputs)[0], reopened(**inputs)[0]
    same = written.keys() == read.keys() and all(torch.equal(tensor, read[name]) for name, tensor in written.items())
    if not same or not torch.allclose(expected, found, rtol=LAST_BITS, atol=LAST_BITS):
        raise RuntimeError("the model written to disk does not give the outputs of the model in memory")
