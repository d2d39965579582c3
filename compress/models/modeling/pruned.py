"""Classifiers of texts and of words whose heads, neurons or pooling are not as any stock class has them.

This file imports only torch, transformers and ``families.py``: both files travel in the model directory, so that the
model opens with ``trust_remote_code=True`` where ``compress`` is not installed. How stock models load is not touched:
every family has a config and two model classes of its own here, such as ``PrunedBertConfig`` and
``PrunedBertForSequenceClassification``. They resize themselves from ``config.kept_heads`` and ``config.ffn_per_layer``
before weights load. A model that was pruned to shapes that a stock class holds stays of that class. With
``config.pooling = "mean"`` a head reads the mean of all tokens in place of the first one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import transformers
from torch import Tensor, nn
from transformers import MPNetConfig, PreTrainedModel
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

# Relative, because both files travel together in model directories.
from .families import (
    POOLED,
    PREFIX,
    PRUNABLE,
    PRUNED_FIELDS,
    WITHOUT_NEURONS,
    Cut,
    head_size_of,
    layers_of,
    linear_of,
    linears_of,
    stock_type,
)

MPNET_BIAS = "encoder.relative_attention_bias"


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
        bias = None if position_bias is None else position_bias[:, self.kept_heads]
        forward: Callable[..., tuple[Tensor, ...]] = super().forward
        return forward(hidden_states, attention_mask, bias, output_attentions, **kwargs)


class MeanPooling:
    """Gives a head ``[B, 1, D]``, the mean of a text's states divided by its length, in place of ``[B, T, D]``.

    So sentence encoders are trained (Reimers and Gurevych 2019, "Sentence-BERT", arXiv:1908.10084, section 3).
    """

    mask: Tensor | None = None

    def read(self, encoder: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Take the mask ``[B, T]``, before the encoder runs."""
        self.mask = named.get("attention_mask", inputs[1] if len(inputs) > 1 else None)

    def give(self, head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what the head reads."""
        states, self.mask, mask = inputs[0], None, self.mask
        total = (states.float() if mask is None else states.float() * mask.unsqueeze(-1)).sum(dim=1, keepdim=True)
        return (nn.functional.normalize(total, dim=-1).to(states.dtype), *inputs[1:])


def _pool(model: PreTrainedModel) -> None:
    family, pooling = stock_type(model.config), model.config.pooling
    head = dict(model.named_modules()).get(POOLED.get(family, ""))
    if head is None or pooling != "mean" or not type(model).__name__.endswith("ForSequenceClassification"):
        raise ValueError(f"pooling = {pooling!r} is not possible; classifiers of texts may have 'mean': {[*POOLED]}")
    means = MeanPooling()
    model.base_model.register_forward_pre_hook(means.read, with_kwargs=True)
    head.register_forward_pre_hook(means.give)


def tell_heads(model: PreTrainedModel, kept: Sequence[Sequence[int]]) -> None:
    """Tell attention modules which of the original heads they have, where they do not see that from their weights."""
    family, config = stock_type(model.config), model.config
    layer: Any
    for layer, heads in zip(layers_of(model), kept, strict=True):
        if family == "deberta-v2":
            attention = layer.attention.self
            attention.num_attention_heads = len(heads)
            attention.all_head_size = len(heads) * attention.attention_head_size
        elif family == "mpnet":  # which reads the position bias of its heads; the four projections stay as they are
            attention = PrunedMPNetSelfAttention(config, heads)  # type: ignore[arg-type]
            for name in ("q", "k", "v", "o"):
                setattr(attention, name, getattr(layer.attention.attn, name))
            layer.attention.attn = attention.train(model.training)


def kept_heads(model: PreTrainedModel) -> list[list[int]]:
    """Return, per layer, the numbers that the present heads had before any pruning: ``config.kept_heads``, or all.

    Raises:
        ValueError: these heads are not those of such a model.
    """
    config, layers = model.config, len(layers_of(model))
    heads = getattr(config, "original_heads", None) or config.num_attention_heads
    kept: list[list[int]] | None = getattr(config, "kept_heads", None)
    kept = [list(range(heads)) for _ in range(layers)] if kept is None else kept
    if len(kept) != layers or not all(
        numbers and list(numbers) == sorted(set(numbers)) and 0 <= numbers[0] and numbers[-1] < heads
        for numbers in kept
    ):
        raise ValueError(
            f"kept_heads = {kept} does not fit {layers} layers of {heads} heads; "
            "each layer needs at least one head number, in rising order"
        )
    return [list(numbers) for numbers in kept]


def _resize(model: PreTrainedModel) -> None:
    config, family = model.config, stock_type(model.config)
    layers, names = layers_of(model), PRUNABLE[family]
    config.kept_heads = kept = kept_heads(model)
    for layer, heads in zip(layers, kept, strict=True):
        _resize_cut(layer, names.heads, len(heads) * head_size_of(config))
    tell_heads(model, kept)
    if family == "mpnet" and config.original_heads is not None:
        table = cast(nn.Embedding, model.base_model.get_submodule(MPNET_BIAS))
        model.base_model.set_submodule(MPNET_BIAS, nn.Embedding(table.num_embeddings, config.original_heads))
    widths = config.ffn_per_layer
    if widths and (family in WITHOUT_NEURONS or len(widths) != len(layers) or min(widths) < 1):
        raise ValueError(f"ffn_per_layer = {widths} does not fit {len(layers)} layers; each needs at least one neuron")
    for layer, width in zip(layers, widths or (), strict=bool(widths)):
        _resize_cut(layer, names.neurons, width)


def _resize_cut(layer: nn.Module, cut: Cut, width: int) -> None:
    for name, old in linears_of(layer, cut.rows).items():
        layer.set_submodule(name, nn.Linear(old.in_features, cut.blocks * width, bias=old.bias is not None))
    old = linear_of(layer, cut.columns)
    layer.set_submodule(cut.columns, nn.Linear(width, old.out_features, bias=old.bias is not None))


@dataclass(kw_only=True)
class _Kept:
    """What configs here say beside what their stock classes do. None: nothing went.

    Per layer, ``kept_heads`` are the numbers that the heads had before any pruning, when there were ``original_heads``
    a layer (None: ``num_attention_heads``, which falls with ``hidden_size`` so that the width of a head stays), and
    ``ffn_per_layer`` the widths of the feed-forward networks. ``kept_layers`` are the numbers that the layers had.
    ``pooling`` is ``mean`` where the head reads that.
    """

    kept_heads: list[list[int]] | None = None
    original_heads: int | None = None
    ffn_per_layer: list[int] | None = None
    kept_layers: list[int] | None = None
    pooling: str | None = None


class _Pruned:
    def __init__(self, *inputs: Any, **kwargs: Any) -> None:
        super().__init__(*inputs, **kwargs)
        _resize(cast(PreTrainedModel, self))
        if cast(PreTrainedModel, self).config.pooling is not None:
            _pool(cast(PreTrainedModel, self))


def _define(name: str, *bases: type[Any], **attributes: Any) -> type[Any]:
    """Define a class in this module, where ``from_pretrained`` looks it up by the name that a config has."""
    globals()[name] = type(name, bases, {"__module__": __name__, **attributes})
    return cast(type[Any], globals()[name])


def _define_all(task: str) -> dict[str, type[Any]]:
    return {
        family: _define(
            f"Pruned{stock}For{task}",
            _Pruned,
            getattr(transformers, f"{stock}For{task}"),
            config_class=CONFIG_CLASSES[family],
        )
        for family, stock in _STOCK_NAMES.items()
    }


# Family -> what the names of its classes in transformers begin with.
_STOCK_NAMES = {
    "albert": "Albert",
    "bert": "Bert",
    "deberta-v2": "DebertaV2",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "mobilebert": "MobileBert",
    "modernbert": "ModernBert",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}
CONFIG_CLASSES = {
    family: _define(f"Pruned{stock}Config", _Kept, getattr(transformers, f"{stock}Config"), model_type=PREFIX + family)
    for family, stock in _STOCK_NAMES.items()
}
MODEL_CLASSES = _define_all("SequenceClassification")
TAGGER_CLASSES = _define_all("TokenClassification")


def to_pruned(model: PreTrainedModel) -> PreTrainedModel:
    """Return a sliced model as a class that reloads, with the same weights and bit-equal logits.

    That is its stock class where this can hold the shapes: layers or vocabulary went, or as many neurons of every
    layer, or hidden width with as many heads. Every client opens it; which layers and heads were kept remains in its
    config, as a note. What no stock class can hold becomes one of the classes here.

    Args:
        model: a sequence classifier, or a tagger, of one of the :data:`PRUNABLE` families, whose config says how it was
            sliced, as :mod:`compress.surgery.remove`, :mod:`compress.surgery.remove` and
            :mod:`compress.surgery.remove` keep it up to date.
    """
    tags = type(model).__name__.endswith("ForTokenClassification")
    model_class = (TAGGER_CLASSES if tags else MODEL_CLASSES)[stock_type(model.config)]
    of_class = {"model_type", "architectures", "auto_map", "transformers_version"}
    settings = {name: value for name, value in model.config.to_dict().items() if name not in of_class}
    if getattr(model.config, "pooling", None) is None and has_stock_shapes(model):
        model_class, settings = model_class.__bases__[-1], _stock_settings(settings)
    config = model_class.config_class(**settings)
    config.architectures = [model_class.__name__]
    pruned: PreTrainedModel = model_class(config)
    nn.Module.to(pruned, next(model.parameters()))
    pruned.load_state_dict(model.state_dict())
    pruned.train(model.training)
    return pruned


def has_stock_shapes(model: PreTrainedModel) -> bool:
    """Tell whether all layers have as many heads as the width of the model makes, and equally many neurons."""
    config, heads = model.config, model.config.num_attention_heads
    # MPNet's position bias has a row for every original head.
    if stock_type(config) == "mpnet" and getattr(config, "original_heads", None) not in {None, heads}:
        return False
    layers = layers_of(model)
    widths = getattr(config, "ffn_per_layer", None) or [0] * len(layers)
    alike = all(len(numbers) == heads for numbers in kept_heads(model)) and len(set(widths)) == 1
    return alike and len(widths) == len(layers)


def _stock_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a stock config says of a model that fits it: the common width, and of pruning only what went."""
    told = {name: value for name, value in settings.items() if name not in PRUNED_FIELDS or value is not None}
    if widths := told.pop("ffn_per_layer", None):
        told["hidden_dim" if "hidden_dim" in told else "intermediate_size"] = widths[0]
    if told.get("original_heads") in {None, told.get("n_heads", told.get("num_attention_heads"))}:
        told.pop("kept_heads", None)  # all of them
    return told
