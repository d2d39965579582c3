"""Transformer families: where the layers of a model lie, and what heads and neurons are cut from.

This file imports only torch and transformers: it travels in model directories with the one beside it that reads it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

PREFIX = "compress-pruned-"
# What a config says of pruning beside the fields of its stock class; modeling/pruned.py says what each means.
PRUNED_FIELDS = ("kept_heads", "original_heads", "ffn_per_layer", "kept_layers")


class LayerNames(NamedTuple):
    """Where things are: the list of layers below the base model, and module names below one layer.

    ``attended_norm`` follows the attention's residual, ``norm`` the feed-forward network's.
    """

    layers: str
    query: str
    key: str
    value: str
    output: str
    attended_norm: str
    widened: str
    narrowed: str
    norm: str


_BERT = LayerNames(
    layers="encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    attended_norm="attention.output.LayerNorm",
    widened="intermediate.dense",
    narrowed="output.dense",
    norm="output.LayerNorm",
)
# One layer is all there is: it is used ``num_hidden_layers`` times.
_ALBERT = LayerNames(
    layers="encoder.albert_layer_groups.0.albert_layers",
    query="attention.query",
    key="attention.key",
    value="attention.value",
    output="attention.dense",
    attended_norm="attention.LayerNorm",
    widened="ffn",
    narrowed="ffn_output",
    norm="full_layer_layer_norm",
)
_DISTILBERT = LayerNames(
    layers="transformer.layer",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    attended_norm="sa_layer_norm",
    widened="ffn.lin1",
    narrowed="ffn.lin2",
    norm="output_layer_norm",
)
_MPNET = LayerNames(
    layers="encoder.layer",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    attended_norm="attention.LayerNorm",
    widened="intermediate.dense",
    narrowed="output.dense",
    norm="output.LayerNorm",
)
FAMILIES: dict[str, LayerNames] = {
    "albert": _ALBERT,
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    "electra": _BERT,
    # The widened and narrowed layers, and the last norm, are those of the last of a layer's feed-forward networks.
    "mobilebert": _BERT,
    "mpnet": _MPNET,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}


class Cut(NamedTuple):
    """What heads, or neurons, of a layer are cut from: modules below the layer.

    A unit of width ``d`` owns ``d`` rows in each of ``blocks`` equal parts of every linear layer in ``rows``, and ``d``
    columns of ``columns``, which reads what the units give.
    """

    rows: tuple[str, ...]
    columns: str
    blocks: int = 1


class Prunable(NamedTuple):
    """Where the layers of a family lie, and what their heads and neurons are cut from.

    ``neurons`` is None where a layer has several feed-forward networks (MobileBERT).
    """

    layers: str
    heads: Cut
    neurons: Cut | None


PRUNABLE: dict[str, Prunable] = {
    family: Prunable(
        names.layers,
        Cut((names.query, names.key, names.value), names.output),
        None if family == "mobilebert" else Cut((names.widened,), names.narrowed),
    )
    for family, names in FAMILIES.items()
} | {
    "deberta-v2": Prunable(
        "encoder.layer",
        # The last two are there only where positions do not share the projections of the content.
        Cut(
            tuple(f"attention.self.{name}_proj" for name in ("query", "key", "value", "pos_key", "pos_query")),
            "attention.output.dense",
        ),
        Cut(("intermediate.dense",), "output.dense"),
    ),
    "modernbert": Prunable("layers", Cut(("attn.Wqkv",), "attn.Wo", 3), Cut(("mlp.Wi",), "mlp.Wo", 2)),
}


def stock_type(config: PretrainedConfig) -> str:
    """Return the stock model type: ``bert`` for ``bert`` and for ``compress-pruned-bert``."""
    return str(config.model_type).removeprefix(PREFIX)


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """Return the transformer layers of a model of one of the :data:`PRUNABLE`; a shared one comes once."""
    layers = model.base_model.get_submodule(PRUNABLE[stock_type(model.config)].layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def linear_of(layer: nn.Module, name: str) -> nn.Linear:
    """Return the linear layer of that name, one of :class:`LayerNames`, of a transformer layer."""
    module = layer.get_submodule(name)
    assert isinstance(module, nn.Linear)
    return module


def head_size_of(config: PretrainedConfig) -> int:
    """Return the width of one attention head, which pruning never changes; MobileBERT attends inside its bottleneck."""
    width: int = getattr(config, "true_hidden_size", config.hidden_size)
    return width // int(config.num_attention_heads)


def linears_of(layer: nn.Module, names: Sequence[str]) -> list[tuple[str, nn.Linear]]:
    """Return those of the linear layers that the transformer layer has, with their names."""
    there = dict(layer.named_modules())
    return [(name, linear_of(layer, name)) for name in names if name in there]
