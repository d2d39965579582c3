"""Transformer families: where the layers of a model lie, and what heads and neurons are cut from.

This file imports only torch and transformers: it travels in model directories with the one beside it that reads it.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

PREFIX = "compress-pruned-"
# What a config says of pruning beside the fields of its stock class; modeling/pruned.py says what each means.
PRUNED_FIELDS = ("kept_heads", "original_heads", "ffn_per_layer", "kept_layers")


class Cut(NamedTuple):
    """What heads, or neurons, of a layer are cut from: modules below the layer.

    A unit of width ``d`` owns ``d`` rows in each of ``blocks`` equal parts of every linear layer in ``rows``, and ``d``
    columns of ``columns``, which reads what the units give.
    """

    rows: tuple[str, ...]
    columns: str
    blocks: int = 1


class FamilyLayers(NamedTuple):
    """Where the layers of a family lie below the base model, and what their heads and neurons are cut from.

    ``attended_norm`` follows the attention's residual, ``norm`` the feed-forward network's. Both are empty where
    attention is built otherwise than BERT's, so that nothing but pruning is made for the family.
    """

    layers: str
    heads: Cut
    neurons: Cut
    attended_norm: str = ""
    norm: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """All modules of a layer that have weights; the same order in every family."""
        return (*self.heads.rows, self.heads.columns, *self.neurons.rows, self.neurons.columns, *self[-2:])


_BERT = FamilyLayers(
    "encoder.layer",
    Cut(("attention.self.query", "attention.self.key", "attention.self.value"), "attention.output.dense"),
    Cut(("intermediate.dense",), "output.dense"),
    "attention.output.LayerNorm",
    "output.LayerNorm",
)
PRUNABLE: dict[str, FamilyLayers] = {
    # One layer is all there is: it is used ``num_hidden_layers`` times.
    "albert": FamilyLayers(
        "encoder.albert_layer_groups.0.albert_layers",
        Cut(("attention.query", "attention.key", "attention.value"), "attention.dense"),
        Cut(("ffn",), "ffn_output"),
        "attention.LayerNorm",
        "full_layer_layer_norm",
    ),
    "bert": _BERT,
    "deberta-v2": FamilyLayers(
        "encoder.layer",
        # The last two are there only where positions do not share the projections of the content.
        Cut(
            tuple(f"attention.self.{name}_proj" for name in ("query", "key", "value", "pos_key", "pos_query")),
            "attention.output.dense",
        ),
        Cut(("intermediate.dense",), "output.dense"),
    ),
    "distilbert": FamilyLayers(
        "transformer.layer",
        Cut(("attention.q_lin", "attention.k_lin", "attention.v_lin"), "attention.out_lin"),
        Cut(("ffn.lin1",), "ffn.lin2"),
        "sa_layer_norm",
        "output_layer_norm",
    ),
    "electra": _BERT,
    "mobilebert": _BERT,  # neurons and norm are those of the last of a layer's feed-forward networks
    "modernbert": FamilyLayers("layers", Cut(("attn.Wqkv",), "attn.Wo", 3), Cut(("mlp.Wi",), "mlp.Wo", 2)),
    "mpnet": FamilyLayers(
        "encoder.layer",
        Cut(("attention.attn.q", "attention.attn.k", "attention.attn.v"), "attention.attn.o"),
        Cut(("intermediate.dense",), "output.dense"),
        "attention.LayerNorm",
        "output.LayerNorm",
    ),
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}
FAMILIES = {name: family for name, family in PRUNABLE.items() if family.norm}
# What of a classifier reads the first token and ends in tanh, for the families that can read the mean in its place.
POOLED = {"bert": "bert.pooler", "mpnet": "classifier", "roberta": "classifier", "xlm-roberta": "classifier"}
# Families whose layers have several feed-forward networks, of which no neurons are removed.
WITHOUT_NEURONS = ("mobilebert",)


def stock_type(config: PretrainedConfig) -> str:
    """Return the stock model type: ``bert`` for ``bert`` and for ``compress-pruned-bert``."""
    return str(config.model_type).removeprefix(PREFIX)


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """Return the transformer layers of a model of one of the :data:`PRUNABLE`; a shared one comes once."""
    return cast(nn.ModuleList, model.base_model.get_submodule(PRUNABLE[stock_type(model.config)].layers))


def linear_of(layer: nn.Module, name: str) -> nn.Linear:
    """Return the linear layer of that name, of a transformer layer."""
    return cast(nn.Linear, layer.get_submodule(name))


def head_size_of(config: PretrainedConfig) -> int:
    """Return the width of one attention head, which pruning never changes; MobileBERT attends inside its bottleneck."""
    width: int = getattr(config, "true_hidden_size", config.hidden_size)
    return width // int(config.num_attention_heads)


def linears_of(layer: nn.Module, names: Sequence[str]) -> dict[str, nn.Linear]:
    """Return those of the linear layers that the transformer layer has, by name."""
    there = dict(layer.named_modules())
    return {name: cast(nn.Linear, there[name]) for name in names if name in there}
