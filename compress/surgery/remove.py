"""Remove heads, neurons, layers and positions of the hidden width from a model's weights, in place.

The model then computes what it computed with them masked, and its config says what is left. To save it, turn it into a
class that reloads with :func:`compress.models.modeling.pruned.to_pruned`. What is removed must be there, and some of it
must stay: :mod:`compress.pruning` chooses it so. Shapes: D hidden width, d width of a head.

What belongs to a position of the hidden width is found by torch-pruning's dependency graph, whatever the family calls
it: the embeddings, the layer norms, what reads the hidden states and what writes them. The pooled vector that some
heads make of them is as wide in every stock class, and loses the same positions. (Fang et al. 2023, "DepGraph: Towards
Any Structural Pruning", arXiv:2301.12900.)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_pruning
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.models.components import Part, example_inputs, ffn_widths, fixed_weights, kept_layers, units_of
from compress.models.integer_rounding import forget_quantization
from compress.models.modeling.families import PRUNABLE, head_size_of, layers_of, stock_type
from compress.models.modeling.pruned import kept_heads, tell_heads

# What modules call the number of columns and of rows of their weight.
_WIDTHS: dict[type[nn.Module], tuple[str, str]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: ("in_channels", "out_channels"),
    nn.Embedding: ("num_embeddings", "embedding_dim"),
}


def remove_heads(model: PreTrainedModel, remove: Mapping[int, Sequence[int]]) -> None:
    """Remove attention heads and write the numbers of those that are left to ``config.kept_heads``.

    Args:
        model: a model of a known family, pruned before or not.
        remove: layer -> positions among that layer's *present* heads.
    """
    _remove(model, remove, "heads")
    kept = kept_heads(model)
    for layer, positions in remove.items():
        kept[layer] = [head for position, head in enumerate(kept[layer]) if position not in positions]
    tell_heads(model, kept)
    model.config.kept_heads = kept


def remove_neurons(model: PreTrainedModel, remove: Mapping[int, Sequence[int]]) -> None:
    """Remove neurons of feed-forward networks, as :func:`remove_heads`; the widths are in ``config.ffn_per_layer``."""
    _remove(model, remove, "neurons")
    model.config.ffn_per_layer = ffn_widths(model)


def _remove(model: PreTrainedModel, remove: Mapping[int, Sequence[int]], part: Part) -> None:
    layers = units_of(model, part)
    for layer in (layer for layer, positions in remove.items() if len(positions)):
        units, gone = layers[layer], sorted(set(map(int, remove[layer])))
        rows, columns = units.rows_of(gone), units.columns_of(gone)
        for linear in (*units.rows, units.columns):
            learns = {name: parameter.requires_grad for name, parameter in linear.named_parameters()}
            if linear is units.columns:
                torch_pruning.prune_linear_in_channels(linear, columns)
            else:
                torch_pruning.prune_linear_out_channels(linear, rows)
            for name, parameter in linear.named_parameters():
                parameter.requires_grad_(learns[name])


def removable_layers(model: PreTrainedModel) -> list[int]:
    """Return the positions of the layers that can go, though not all of them at once.

    ModernBERT's first one cannot, which reads the embeddings without a norm.

    Raises:
        CompressError: a family none of whose layers can go.
    """
    family = stock_type(model.config)
    possible = sorted(PRUNABLE.keys() - {"albert"})
    refuse(
        (
            family == "albert",
            f"an ALBERT has one layer, used {getattr(model.config, 'num_hidden_layers', 0)} times, so that none can "
            "go; remove heads or neurons of it",
        ),
        (
            family not in possible,
            f"the layers of a {model.config.model_type!r} model are not known to compress; layers can be removed from "
            f"{', '.join(possible)}",
        ),
    )
    return list(range(family == "modernbert", len(layers_of(model))))


def remove_layers(model: PreTrainedModel, layers: Iterable[int]) -> None:
    """Remove layers and write the original numbers of those that are left to ``config.kept_layers``.

    Args:
        model: a model of a known family, pruned before or not.
        layers: positions among the *present* layers.
    """
    config, numbers, gone = model.config, kept_layers(model), set(layers)
    kept = [position for position in range(len(numbers)) if position not in gone]
    if len(kept) == len(numbers):
        return
    _set_layers(model, nn.ModuleList(layers_of(model)[position] for position in kept))
    forget_quantization(config)  # it names weights by the numbers that their layers had
    config.num_hidden_layers = len(kept)
    config.kept_layers = [numbers[position] for position in kept]
    for name in ("kept_heads", "ffn_per_layer", "layer_types"):  # the last is ModernBERT's
        if (by_layer := getattr(config, name, None)) is not None:
            setattr(config, name, [by_layer[position] for position in kept])


@contextmanager
def skipped(model: PreTrainedModel, layers: Iterable[int]) -> Iterator[None]:
    """Let the model compute, within the block, what it would with these layers removed. Its config stays."""
    whole, gone = layers_of(model), set(layers)
    _set_layers(model, nn.ModuleList(layer for position, layer in enumerate(whole) if position not in gone))
    try:
        yield
    finally:
        _set_layers(model, whole)


def _set_layers(model: PreTrainedModel, layers: nn.ModuleList) -> None:
    layers.training = layers_of(model).training
    model.base_model.set_submodule(PRUNABLE[stock_type(model.config)].layers, layers)


@dataclass(frozen=True)
class Member:
    """A module of which each position of the hidden width has a share.

    The share is a column of the weight where the module ``reads`` hidden states or looks them up, else a row of it and
    a number of the bias.
    """

    module: nn.Module
    reads: bool

    def shares(self) -> list[tuple[str, nn.Parameter, int]]:
        """Return the parameters that positions have a share of: name, parameter, and dimension of the positions."""
        columns = self.reads or isinstance(self.module, nn.Embedding)
        along = {"weight": int(columns)} | ({} if self.reads else {"bias": 0})
        return [(name, values, along[name]) for name, values in self.module.named_parameters() if name in along]

    def keep(self, positions: Tensor) -> None:
        """Cut all other positions out.

        Not with torch-pruning, which leaves what remains of a layer norm in the order of a Python set: 256 of 1024
        positions come out permuted.
        """
        for name, parameter, dimension in self.shares():
            kept = parameter.detach().index_select(dimension, positions.to(parameter.device))
            setattr(self.module, name, nn.Parameter(kept, requires_grad=parameter.requires_grad))
        if isinstance(self.module, nn.LayerNorm):
            self.module.normalized_shape = (len(positions),)
        else:
            setattr(self.module, _WIDTHS[type(self.module)][not self.reads], len(positions))


def members(model: PreTrainedModel) -> list[Member]:
    """Return the modules that positions of the hidden width have a share of, once for reading and once for writing.

    Raises:
        CompressError: a family that cannot be made narrower.
    """
    family = stock_type(model.config)
    can = f"{', '.join(sorted(PRUNABLE.keys() - {'mobilebert'}))} can be made narrower"
    refuse(
        (
            family == "mobilebert",
            "a mobilebert cannot be made narrower: its layers take their own norms and bottlenecks, whose widths hang "
            f"together with the hidden one; {can}",
        ),
        (
            family not in PRUNABLE,
            f"the hidden width of a {model.config.model_type!r} model is not known to compress; {can}",
        ),
    )
    with fixed_weights(model, learning=True), torch.enable_grad():  # the graph is read from a backward
        graph = torch_pruning.DependencyGraph()
        graph.build_dependency(
            model, example_inputs=example_inputs(model), output_transform=lambda outputs: outputs.logits
        )
        found: list[Member] = []
        for linear in [linear for units in units_of(model) for linear in units.rows]:
            # All of these are one group, but for DeBERTas whose positions have projections of their own.
            if not any(member.module is linear for member in found):
                found += _group(graph, linear, torch_pruning.prune_linear_in_channels)
        # A linear layer that reads hidden states after the layers and is not the classifier makes the pooled vector.
        others = {*layers_of(model).modules(), getattr(model, "classifier", None)}
        for pooled in [member.module for member in found if member.reads]:
            if isinstance(pooled, nn.Linear) and pooled not in others:
                found += _group(graph, pooled, torch_pruning.prune_linear_out_channels)
    table = getattr(getattr(model.base_model, "encoder", None), "rel_embeddings", None)
    if table is not None:  # DeBERTa reads the weight of this table without a call that the graph would see
        found.append(Member(table, reads=False))
    return found


def _group(graph: torch_pruning.DependencyGraph, module: nn.Module, cut: Callable[..., Any]) -> list[Member]:
    """Return the modules with weights that lose a position with one of them."""
    found = []
    for dependency, positions in graph.get_pruning_group(module, cut, idxs=[0]):
        target = dependency.target.module
        if next(target.parameters(), None) is None:
            continue
        assert positions == [0], f"the positions of {dependency.target.name} are not those of the hidden states"
        # torch-pruning reports norms and tables as both, since their input and output are equally wide.
        reads = isinstance(target, nn.Linear | nn.Conv1d) and graph.is_in_channel_pruning_fn(dependency.handler)
        found.append(Member(target, reads))
    return found


def remove_hidden(model: PreTrainedModel, positions: Iterable[int]) -> None:
    """Remove positions of the hidden width; the config says how wide the model is then.

    The width of a head stays. Because stock classes take it to be ``hidden_size / num_attention_heads``, positions go
    in multiples of it, ``config.num_attention_heads`` falls with them, and ``config.kept_heads`` says which of
    ``config.original_heads`` a layer really has.

    Raises:
        CompressError: a number of positions that leaves a width which the family cannot have.
    """
    config, gone = model.config, set(positions)
    if not gone:
        return
    parts, width, size = members(model), int(config.hidden_size), head_size_of(config)
    left = width - len(gone)
    apart = not any(part.module is model.get_input_embeddings() for part in parts)
    refuse(
        (
            apart and left == config.embedding_size and stock_type(config) != "albert",
            f"{len(gone)} of {width} hidden positions cannot be removed: {left} is the width of this model's "
            f"embeddings, where its family has no projection of them; remove {size} more or fewer",
        )
    )
    kept, heads = kept_heads(model), int(config.num_attention_heads)
    stay = torch.tensor([position for position in range(width) if position not in gone])
    for part in parts:
        part.keep(stay)
    if not apart and hasattr(config, "embedding_size"):
        config.embedding_size = left
    if hasattr(config, "pooler_hidden_size"):  # DeBERTa's
        config.pooler_hidden_size = left
    config.original_heads = getattr(config, "original_heads", None) or heads
    config.kept_heads = kept
    config.hidden_size, config.num_attention_heads = left, left // size
