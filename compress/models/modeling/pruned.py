"""Classifiers of texts and of words whose heads and neurons are not as any stock class has them, as model types.

This file imports only torch, transformers and ``families.py``: both files travel in the model directory, so that the
model opens with ``trust_remote_code=True`` where ``compress`` is not installed. How stock models load is not touched:
every family has a config and a model class of its own here, which resize themselves from ``config.kept_heads`` and
``config.ffn_per_layer`` before weights load. What was pruned to shapes that a stock class holds stays one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    MobileBertConfig,
    MobileBertForSequenceClassification,
    MobileBertForTokenClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
)
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

# Relative, because both files travel together in model directories.
from .families import (
    PREFIX,
    PRUNABLE,
    PRUNED_FIELDS,
    Cut,
    head_size_of,
    layers_of,
    linear_of,
    linears_of,
    stock_type,
)


class PrunedMPNetSelfAttention(MPNetSelfAttention):
    """MPNet's attention with some heads removed.

    The relative position bias ``[B, H, T, T]`` is computed once for all layers, one row for every original head, so
    that a layer takes the rows of the heads that it kept.
    """

    def __init__(self, config: MPNetConfig, kept_heads: Sequence[int]) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
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
        outputs: tuple[Tensor, ...] = super().forward(  # type: ignore[no-untyped-call]
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


def count_heads(layer: nn.Module, family: str, heads: int) -> None:
    """Tell an attention module how many heads it has, where it does not see that from its weights."""
    if family == "deberta-v2":
        attention: Any = layer.get_submodule(PRUNABLE[family].attention)
        attention.num_attention_heads = heads
        attention.all_head_size = heads * attention.attention_head_size


def _kept_heads(model: PreTrainedModel) -> list[list[int]]:
    """Return ``config.kept_heads``, all heads where it says nothing.

    Raises:
        ValueError: these heads are not those of such a model.
    """
    config, layers = model.config, len(layers_of(model))
    heads = getattr(config, "original_heads", None) or config.num_attention_heads
    kept: list[list[int]] | None = getattr(config, "kept_heads", None)
    if kept is None:
        return [list(range(heads)) for _ in range(layers)]
    if len(kept) != layers or not all(
        numbers and list(numbers) == sorted(set(numbers)) and 0 <= numbers[0] and numbers[-1] < heads
        for numbers in kept
    ):
        raise ValueError(
            f"kept_heads = {kept} does not fit {layers} layers of {heads} heads; "
            "each layer needs at least one head number, in rising order"
        )
    return kept


def _resize(model: PreTrainedModel) -> None:
    """Give every layer the shapes of ``config.kept_heads`` and ``ffn_per_layer``, with weights that loading fills."""
    config, family = model.config, stock_type(model.config)
    layers, names = layers_of(model), PRUNABLE[family]
    config.kept_heads = kept = _kept_heads(model)
    for index, (layer, heads) in enumerate(zip(layers, kept, strict=True)):
        _resize_cut(layer, names.heads, len(heads) * head_size_of(config))
        count_heads(layer, family, len(heads))
        if family == "mpnet":
            keep_mpnet_heads(model, index, heads)
    if family == "mpnet" and config.original_heads is not None:
        encoder: Any = model.base_model.encoder
        buckets = encoder.relative_attention_bias.num_embeddings
        encoder.relative_attention_bias = nn.Embedding(buckets, config.original_heads)
    widths = config.ffn_per_layer
    if widths is None:
        return
    if names.neurons is None:
        raise ValueError(f"ffn_per_layer = {widths}, but the feed-forward networks of {family} are not cut")
    if len(widths) != len(layers) or min(widths) < 1:
        raise ValueError(f"ffn_per_layer = {widths} does not fit {len(layers)} layers; each needs at least one neuron")
    for layer, width in zip(layers, widths, strict=True):
        _resize_cut(layer, names.neurons, width)


def _resize_cut(layer: nn.Module, cut: Cut, width: int) -> None:
    for name, old in linears_of(layer, cut.rows):
        layer.set_submodule(name, nn.Linear(old.in_features, cut.blocks * width, bias=old.bias is not None))
    old = linear_of(layer, cut.columns)
    layer.set_submodule(cut.columns, nn.Linear(width, old.out_features, bias=old.bias is not None))


@dataclass(kw_only=True)
class _Kept:
    """What configs here say beside what their stock classes do. None: nothing went.

    Per layer, ``kept_heads`` are the numbers that the heads had before any pruning, when there were ``original_heads``
    a layer (None: ``num_attention_heads``, which falls with ``hidden_size`` so that the width of a head stays), and
    ``ffn_per_layer`` the widths of the feed-forward networks. ``kept_layers`` are the numbers that the layers had.
    """

    kept_heads: list[list[int]] | None = None
    original_heads: int | None = None
    ffn_per_layer: list[int] | None = None
    kept_layers: list[int] | None = None


class _Pruned:
    """Resize before weights are loaded."""

    def __init__(self, *inputs: Any, **kwargs: Any) -> None:
        super().__init__(*inputs, **kwargs)
        _resize(cast(PreTrainedModel, self))


class PrunedAlbertConfig(_Kept, AlbertConfig):
    model_type = PREFIX + "albert"


class PrunedAlbertForSequenceClassification(_Pruned, AlbertForSequenceClassification):
    config_class = PrunedAlbertConfig


class PrunedBertConfig(_Kept, BertConfig):
    model_type = PREFIX + "bert"


class PrunedBertForSequenceClassification(_Pruned, BertForSequenceClassification):
    config_class = PrunedBertConfig


class PrunedDebertaV2Config(_Kept, DebertaV2Config):
    model_type = PREFIX + "deberta-v2"


class PrunedDebertaV2ForSequenceClassification(_Pruned, DebertaV2ForSequenceClassification):
    config_class = PrunedDebertaV2Config


class PrunedDistilBertConfig(_Kept, DistilBertConfig):
    model_type = PREFIX + "distilbert"


class PrunedDistilBertForSequenceClassification(_Pruned, DistilBertForSequenceClassification):
    config_class = PrunedDistilBertConfig


class PrunedElectraConfig(_Kept, ElectraConfig):
    model_type = PREFIX + "electra"


class PrunedElectraForSequenceClassification(_Pruned, ElectraForSequenceClassification):
    config_class = PrunedElectraConfig


class PrunedMobileBertConfig(_Kept, MobileBertConfig):
    model_type = PREFIX + "mobilebert"


class PrunedMobileBertForSequenceClassification(_Pruned, MobileBertForSequenceClassification):
    config_class = PrunedMobileBertConfig


class PrunedModernBertConfig(_Kept, ModernBertConfig):
    model_type = PREFIX + "modernbert"


class PrunedModernBertForSequenceClassification(_Pruned, ModernBertForSequenceClassification):
    config_class = PrunedModernBertConfig


class PrunedMPNetConfig(_Kept, MPNetConfig):
    model_type = PREFIX + "mpnet"


class PrunedMPNetForSequenceClassification(_Pruned, MPNetForSequenceClassification):
    config_class = PrunedMPNetConfig


class PrunedRobertaConfig(_Kept, RobertaConfig):
    model_type = PREFIX + "roberta"


class PrunedRobertaForSequenceClassification(_Pruned, RobertaForSequenceClassification):
    config_class = PrunedRobertaConfig


class PrunedXLMRobertaConfig(_Kept, XLMRobertaConfig):
    model_type = PREFIX + "xlm-roberta"


class PrunedXLMRobertaForSequenceClassification(_Pruned, XLMRobertaForSequenceClassification):
    config_class = PrunedXLMRobertaConfig


class PrunedAlbertForTokenClassification(_Pruned, AlbertForTokenClassification):
    config_class = PrunedAlbertConfig


class PrunedMobileBertForTokenClassification(_Pruned, MobileBertForTokenClassification):
    config_class = PrunedMobileBertConfig


class PrunedBertForTokenClassification(_Pruned, BertForTokenClassification):
    config_class = PrunedBertConfig


class PrunedDebertaV2ForTokenClassification(_Pruned, DebertaV2ForTokenClassification):
    config_class = PrunedDebertaV2Config


class PrunedModernBertForTokenClassification(_Pruned, ModernBertForTokenClassification):
    config_class = PrunedModernBertConfig


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
    "deberta-v2": PrunedDebertaV2ForSequenceClassification,
    "distilbert": PrunedDistilBertForSequenceClassification,
    "electra": PrunedElectraForSequenceClassification,
    "mobilebert": PrunedMobileBertForSequenceClassification,
    "modernbert": PrunedModernBertForSequenceClassification,
    "mpnet": PrunedMPNetForSequenceClassification,
    "roberta": PrunedRobertaForSequenceClassification,
    "xlm-roberta": PrunedXLMRobertaForSequenceClassification,
}
TAGGER_CLASSES: dict[str, type[Any]] = {
    "albert": PrunedAlbertForTokenClassification,
    "bert": PrunedBertForTokenClassification,
    "deberta-v2": PrunedDebertaV2ForTokenClassification,
    "distilbert": PrunedDistilBertForTokenClassification,
    "electra": PrunedElectraForTokenClassification,
    "mobilebert": PrunedMobileBertForTokenClassification,
    "modernbert": PrunedModernBertForTokenClassification,
    "mpnet": PrunedMPNetForTokenClassification,
    "roberta": PrunedRobertaForTokenClassification,
    "xlm-roberta": PrunedXLMRobertaForTokenClassification,
}


def to_pruned(model: PreTrainedModel) -> PreTrainedModel:
    """Return a sliced model as a class that reloads, with the same weights and bit-equal logits.

    That is its stock class where this can hold the shapes: layers or vocabulary went, or as many neurons of every
    layer, or hidden width with as many heads. Every client opens it; which layers and heads were kept remains in its
    config, as a note. What no stock class can hold becomes one of the classes here.

    Args:
        model: a sequence classifier, or a tagger, of one of the :data:`PRUNABLE` families, whose config says how it was
            sliced, as :mod:`compress.surgery.remove_units`, :mod:`compress.surgery.remove_layers` and
            :mod:`compress.surgery.remove_hidden` keep it up to date.
    """
    tags = type(model).__name__.endswith("ForTokenClassification")
    model_class = (TAGGER_CLASSES if tags else MODEL_CLASSES)[stock_type(model.config)]
    settings = model.config.to_dict()
    for name in ("model_type", "architectures", "auto_map", "transformers_version"):
        settings.pop(name, None)
    if _fits_stock_class(model):
        model_class = model_class.__bases__[-1]
        settings = _stock_settings(settings)
    config = model_class.config_class(**settings)
    config.architectures = [model_class.__name__]
    pruned: PreTrainedModel = model_class(config)
    nn.Module.to(pruned, next(model.parameters()))
    pruned.load_state_dict(model.state_dict())
    pruned.train(model.training)
    return pruned


def _fits_stock_class(model: PreTrainedModel) -> bool:
    """Tell whether all layers have as many heads as the width of the model makes, and equally many neurons."""
    config = model.config
    heads, original = config.num_attention_heads, getattr(config, "original_heads", None) or config.num_attention_heads
    if stock_type(config) == "mpnet" and original != heads:
        return False  # its position bias has a row for every original head
    widths = getattr(config, "ffn_per_layer", None) or [0] * len(layers_of(model))
    return (
        all(len(numbers) == heads for numbers in _kept_heads(model))
        and len(widths) == len(layers_of(model))
        and len(set(widths)) == 1
    )


def _stock_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a stock config says of a model that fits it: the common width, and of pruning only what went."""
    settings = dict(settings)
    if widths := settings.pop("ffn_per_layer", None):
        settings["hidden_dim" if "hidden_dim" in settings else "intermediate_size"] = widths[0]
    if settings.get("original_heads") in {None, settings.get("n_heads", settings.get("num_attention_heads"))}:
        settings.pop("kept_heads", None)  # all of them
    return {name: value for name, value in settings.items() if name not in PRUNED_FIELDS or value is not None}
