"""Remove whole layers from a model, permanently or within a block."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.models.modeling.families import PRUNABLE, layers_of, stock_type
from compress.models.packed_weights import forget_quantization
from compress.models.prunable_units import kept_layers


def removable_layers(model: PreTrainedModel) -> list[int]:
    """Return the positions of the layers that can go, though not all of them at once.

    Raises:
        CompressError: a family none of whose layers can go.
    """
    family = stock_type(model.config)
    if family not in PRUNABLE:
        raise CompressError(
            f"the layers of a {model.config.model_type!r} model are not known to compress; "
            f"layers can be removed from {', '.join(sorted(PRUNABLE.keys() - {'albert'}))}"
        )
    if family == "albert":
        raise CompressError(
            f"an ALBERT has one layer, used {model.config.num_hidden_layers} times, so that none can go; "
            "remove heads or neurons of it"
        )
    return list(range(1 if family == "modernbert" else 0, len(layers_of(model))))


def remove_layers(model: PreTrainedModel, layers: Iterable[int]) -> None:
    """Remove layers in place and write the original numbers of those that are left to ``config.kept_layers``.

    Args:
        model: a model of a known family, pruned before or not.
        layers: positions among the *present* layers.

    Raises:
        CompressError: layers that the model does not have or cannot do without.
    """
    kept = _without(model, layers)
    numbers = kept_layers(model)
    if len(kept) == len(numbers):
        return
    _keep(model, nn.ModuleList(layers_of(model)[position] for position in kept))
    config = model.config
    forget_quantization(config)  # it names weights by the numbers that their layers had
    config.num_hidden_layers = len(kept)
    config.kept_layers = [numbers[position] for position in kept]
    for name in ("kept_heads", "ffn_per_layer", "layer_types"):  # the last is ModernBERT's
        if (by_layer := getattr(config, name, None)) is not None:
            setattr(config, name, [by_layer[position] for position in kept])


@contextmanager
def skipped(model: PreTrainedModel, layers: Iterable[int]) -> Iterator[None]:
    """Let the model compute, within the block, what it would with these layers removed. Its config stays.

    Arguments and errors are those of :func:`remove_layers`.
    """
    whole = layers_of(model)
    _keep(model, nn.ModuleList(whole[position] for position in _without(model, layers)))
    try:
        yield
    finally:
        _keep(model, whole)


def _without(model: PreTrainedModel, layers: Iterable[int]) -> list[int]:
    """Return the positions of the layers that stay without some."""
    candidates, there = removable_layers(model), range(len(layers_of(model)))
    gone = sorted(set(layers))
    for layer in gone:
        if layer not in there:
            raise CompressError(f"there is no layer {layer}; the model has layers 0 to {there[-1]}")
        if layer not in candidates:
            raise CompressError(
                f"layer {layer} of a {stock_type(model.config)} is the only one that reads the embeddings without a "
                f"norm, and cannot go; choose among layers {candidates[0]} to {candidates[-1]}"
            )
    if len(gone) == len(there):
        raise CompressError(f"all {len(there)} layers would go; a model keeps at least one")
    return [layer for layer in there if layer not in gone]


def _keep(model: PreTrainedModel, layers: nn.ModuleList) -> None:
    """Give a model other layers."""
    layers.training = layers_of(model).training
    model.base_model.set_submodule(PRUNABLE[stock_type(model.config)].layers, layers)
