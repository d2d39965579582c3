"""Stock classifiers of texts and of words whose attention layers keep different numbers of heads, as model types.

This file imports only torch and transformers: it travels in the model directory, so that the model opens with
``trust_remote_code=True`` where ``compress`` is not installed. How stock models load is not touched: every family has
a config and a model class of its own here, which resize themselves from ``config.kept_heads`` before weights load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    MobileBertConfig,
    MobileBertForSequenceClassification,
    MobileBertForTokenClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
)
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

PREFIX = "compress-pruned-"


class LayerNames(NamedTuple):
    """Where things are: the list of layers below the base model, and module names below one layer.

    ``attended_norm`` follows the attention's residual, ``norm`` the feed-forward network's.
    """

    layers: str
    attention: str
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
    attention="attention.self",
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
    attention="attention",
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
    attention="attention",
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
    attention="attention.attn",
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


def stock_type(config: PretrainedConfig) -> str:
    """Return the stock model type: ``bert`` for ``bert`` and for ``compress-pruned-bert``."""
    return str(config.model_type).removeprefix(PREFIX)


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """Return the transformer layers of a model of one of the :data:`FAMILIES`; a shared one comes once."""
    layers = model.base_model.get_submodule(FAMILIES[stock_type(model.config)].layers)
    assert isinstance(layers, nn.ModuleList)
    return layers


def linear_of(layer: nn.Module, name: str) -> nn.Linear:
    """Return the linear layer of that name, one of :class:`LayerNames`, of a transformer layer."""
    module = layer.get_submodule(name)
    assert isinstance(module, nn.Linear)
    return module


def head_size_of(config: PretrainedConfig) -> int:
    """Return the width of one attention head of an unpruned model; MobileBERT attends inside its bottleneck."""
    width: int = getattr(config, "true_hidden_size", config.hidden_size)
    return width // int(config.num_attention_heads)


class PrunedMPNetSelfAttention(MPNetSelfAttention):
    """MPNet's attention with some heads removed.

    The relative position bias ``[B, H, T, T]`` is computed once for all layers, one row for every original head, so
    that a layer takes the rows of the heads that it kept.
    """

    def __init__(self, config: MPNetConfig, kept_heads: Sequence[int]) -> None:
        super().__init__(config)
        self.kept_heads = list(kept_heads)
        self.num_attention_heads = len(self.kept_heads)
        self.all_head_size = self.num_attention_heads * self.attention_head_size

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        if position_bias is not None:
            position_bias = position_bias[:, self.kept_heads]
        outputs: tuple[Tensor, ...] = super().forward(
            hidden_states, attention_mask, position_bias, output_attentions, **kwargs
        )
        return outputs


def keep_mpnet_heads(model: PreTrainedModel, layer: int, kept_heads: Sequence[int]) -> None:
    """Make one MPNet layer read the position bias of these original heads; its four projections stay as they are."""
    module: Any = layers_of(model)[layer].attention
    config: Any = model.config
    attention = PrunedMPNetSelfAttention(config, kept_heads)
    for name in ("q", "k", "v", "o"):
        setattr(attention, name, getattr(module.attn, name))
    module.attn = attention.train(module.training)


def _resize(model: PreTrainedModel) -> None:
    """Give every attention layer the shapes of ``config.kept_heads``, with fresh weights that loading fills."""
    config, names = model.config, FAMILIES[stock_type(model.config)]
    layers = layers_of(model)
    kept = config.kept_heads
    if kept is None:
        config.kept_heads = kept = [list(range(config.num_attention_heads)) for _ in layers]
    if len(kept) != len(layers) or not all(
        heads and list(heads) == sorted(set(heads)) and 0 <= heads[0] and heads[-1] < config.num_attention_heads
        for heads in kept
    ):
        raise ValueError(
            f"kept_heads = {kept} does not fit {len(layers)} layers of {config.num_attention_heads} heads; "
            "each layer needs at least one head number, in rising order"
        )
    for index, (layer, heads) in enumerate(zip(layers, kept, strict=True)):
        width = len(heads) * head_size_of(config)
        for name in (names.query, names.key, names.value):
            layer.set_submodule(name, nn.Linear(linear_of(layer, name).in_features, width))
        layer.set_submodule(names.output, nn.Linear(width, linear_of(layer, names.output).out_features))
        if names is _MPNET:
            keep_mpnet_heads(model, index, heads)


class _Pruned:
    """Resize before weights are loaded. ``kept_heads`` are head numbers of the model that was pruned, per layer."""

    def __init__(self, *inputs: Any, **kwargs: Any) -> None:
        super().__init__(*inputs, **kwargs)
        _resize(cast(PreTrainedModel, self))


class PrunedAlbertConfig(AlbertConfig):
    model_type = PREFIX + "albert"
    kept_heads: list[list[int]] | None = None


class PrunedAlbertForSequenceClassification(_Pruned, AlbertForSequenceClassification):
    config_class = PrunedAlbertConfig


class PrunedBertConfig(BertConfig):
    model_type = PREFIX + "bert"
    kept_heads: list[list[int]] | None = None


class PrunedBertForSequenceClassification(_Pruned, BertForSequenceClassification):
    config_class = PrunedBertConfig


class PrunedDistilBertConfig(DistilBertConfig):
    model_type = PREFIX + "distilbert"
    kept_heads: list[list[int]] | None = None


class PrunedDistilBertForSequenceClassification(_Pruned, DistilBertForSequenceClassification):
    config_class = PrunedDistilBertConfig


class PrunedElectraConfig(ElectraConfig):
    model_type = PREFIX + "electra"
    kept_heads: list[list[int]] | None = None


class PrunedElectraForSequenceClassification(_Pruned, ElectraForSequenceClassification):
    config_class = PrunedElectraConfig


class PrunedMobileBertConfig(MobileBertConfig):
    model_type = PREFIX + "mobilebert"
    kept_heads: list[list[int]] | None = None


class PrunedMobileBertForSequenceClassification(_Pruned, MobileBertForSequenceClassification):
    config_class = PrunedMobileBertConfig


class PrunedMPNetConfig(MPNetConfig):
    model_type = PREFIX + "mpnet"
    kept_heads: list[list[int]] | None = None


class PrunedMPNetForSequenceClassification(_Pruned, MPNetForSequenceClassification):
    config_class = PrunedMPNetConfig


class PrunedRobertaConfig(RobertaConfig):
    model_type = PREFIX + "roberta"
    kept_heads: list[list[int]] | None = None


class PrunedRobertaForSequenceClassification(_Pruned, RobertaForSequenceClassification):
    config_class = PrunedRobertaConfig


class PrunedXLMRobertaConfig(XLMRobertaConfig):
    model_type = PREFIX + "xlm-roberta"
    kept_heads: list[list[int]] | None = None


class PrunedXLMRobertaForSequenceClassification(_Pruned, XLMRobertaForSequenceClassification):
    config_class = PrunedXLMRobertaConfig


class PrunedAlbertForTokenClassification(_Pruned, AlbertForTokenClassification):
    config_class = PrunedAlbertConfig


class PrunedMobileBertForTokenClassification(_Pruned, MobileBertForTokenClassification):
    config_class = PrunedMobileBertConfig


class PrunedBertForTokenClassification(_Pruned, BertForTokenClassification):
    config_class = PrunedBertConfig


class PrunedDistilBertForTokenClassification(_Pruned, DistilBertForTokenClassification):
    config_class = PrunedDistilBertConfig


class PrunedElectraForTokenClassification(_Pruned, ElectraForTokenClassification):
    config_class = PrunedElectraConfig


class PrunedMPNetForTokenClassification(_Pruned, MPNetForTokenClassification):
    config_class = PrunedMPNetConfig


class PrunedRobertaForTokenClassification(_Pruned, RobertaForTokenClassification):
    config_class = PrunedRobertaConfig


class PrunedXLMRobertaForTokenClassification(_Pruned, XLMRobertaForTokenClassification):
    config_class = PrunedXLMRobertaConfig


MODEL_CLASSES: dict[str, type[Any]] = {
    "albert": PrunedAlbertForSequenceClassification,
    "bert": PrunedBertForSequenceClassification,
    "distilbert": PrunedDistilBertForSequenceClassification,
    "electra": PrunedElectraForSequenceClassification,
    "mobilebert": PrunedMobileBertForSequenceClassification,
    "mpnet": PrunedMPNetForSequenceClassification,
    "roberta": PrunedRobertaForSequenceClassification,
    "xlm-roberta": PrunedXLMRobertaForSequenceClassification,
}
TAGGER_CLASSES: dict[str, type[Any]] = {
    "albert": PrunedAlbertForTokenClassification,
    "bert": PrunedBertForTokenClassification,
    "distilbert": PrunedDistilBertForTokenClassification,
    "electra": PrunedElectraForTokenClassification,
    "mobilebert": PrunedMobileBertForTokenClassification,
    "mpnet": PrunedMPNetForTokenClassification,
    "roberta": PrunedRobertaForTokenClassification,
    "xlm-roberta": PrunedXLMRobertaForTokenClassification,
}


def to_pruned(model: PreTrainedModel, kept_heads: Sequence[Sequence[int]] | None = None) -> PreTrainedModel:
    """Return a sliced model as one of the classes here, with the same weights and bit-equal logits.

    Args:
        model: a sequence classifier, or a tagger, of one of the :data:`FAMILIES` whose attention has been sliced.
        kept_heads: per layer, the original numbers of the heads that are left; by default ``config.kept_heads``,
            which :func:`compress.attention.remove_heads` keeps up to date.
    """
    tags = type(model).__name__.endswith("ForTokenClassification")
    model_class = (TAGGER_CLASSES if tags else MODEL_CLASSES)[stock_type(model.config)]
    settings = model.config.to_dict()
    heads = kept_heads if kept_heads is not None else settings.get("kept_heads")
    for name in ("model_type", "architectures", "auto_map", "transformers_version", "kept_heads"):
        settings.pop(name, None)
    kept = None if heads is None else [[int(head) for head in layer] for layer in heads]
    config = model_class.config_class(kept_heads=kept, **settings)
    config.architectures = [model_class.__name__]
    pruned: PreTrainedModel = model_class(config)
    nn.Module.to(pruned, next(model.parameters()))
    pruned.load_state_dict(model.state_dict())
    return pruned.train(model.training)
