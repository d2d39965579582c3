"""Attention heads and feed-forward neurons of the layers, as units to prune, and the projections of attention."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.models.modeling.families import (
    FAMILIES,
    PRUNABLE,
    WITHOUT_NEURONS,
    head_size_of,
    layers_of,
    linear_of,
    linears_of,
    stock_type,
)

Part = Literal["heads", "neurons"]


@dataclass(frozen=True)
class Units:
    """The heads, or the neurons, of one layer, and the weights that are theirs.

    A unit owns ``size`` rows in each of ``blocks`` equal parts of every linear layer in ``rows``, and ``size`` columns
    of ``columns``, whose input ``[B, T, count * size]`` is what the units give.
    """

    rows: tuple[nn.Linear, ...]
    columns: nn.Linear
    size: int
    blocks: int = 1

    @property
    def count(self) -> int:
        return self.columns.in_features // self.size

    def columns_of(self, chosen: Iterable[int]) -> list[int]:
        return [unit * self.size + offset for unit in chosen for offset in range(self.size)]

    def rows_of(self, chosen: Iterable[int]) -> list[int]:
        within = self.columns_of(chosen)
        return [block * self.columns.in_features + row for block in range(self.blocks) for row in within]

    def sum_over_rows(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``[count]``: sums over the units' rows, weights and biases, of what ``of`` makes of a parameter."""
        parts = (of(parameter) for linear in self.rows for parameter in linear.parameters())
        return torch.stack([part.reshape(self.blocks, self.count, -1).sum(dim=(0, 2)) for part in parts]).sum(dim=0)

    def sum_over_columns(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``[count]``: sums over the units' columns of what ``of`` makes of the weights."""
        return of(self.columns.weight).reshape(-1, self.count, self.size).sum(dim=(0, 2))


def has_units(model: PreTrainedModel, part: Part = "heads") -> bool:
    """Tell whether this project knows where the heads, or neurons, of the model are."""
    return not _fault(model, part)


def units_of(model: PreTrainedModel, part: Part = "heads") -> list[Units]:
    """Return the heads, or neurons, of each layer from the first to the last.

    These are the layers that there are weights of: ALBERT's one layer comes once, however often it is used. What is
    done to its heads acts at every use.

    Raises:
        CompressError: for a model of which this project does not know them.
    """
    fault = _fault(model, part)
    refuse((fault, fault))
    cut = getattr(PRUNABLE[stock_type(model.config)], part)
    size = head_size_of(model.config) if part == "heads" else 1
    return [
        Units(tuple(linears_of(layer, cut.rows).values()), linear_of(layer, cut.columns), size, cut.blocks)
        for layer in layers_of(model)
    ]


def _fault(model: PreTrainedModel, part: Part) -> str:
    family = stock_type(model.config)
    if part not in get_args(Part):
        return f"part = {part!r} is not known; use {' or '.join(map(repr, get_args(Part)))}"
    if family not in PRUNABLE:
        return (
            f"the attention heads of a {model.config.model_type!r} model are not known to compress; "
            f"heads can be removed from {', '.join(sorted(PRUNABLE))}"
        )
    # An ALBERT that shares more than one layer; every published one shares one.
    if (getattr(model.config, "num_hidden_groups", 1), getattr(model.config, "inner_group_num", 1)) != (1, 1):
        return (
            f"this ALBERT shares {model.config.num_hidden_groups} groups of {model.config.inner_group_num} layers; "
            "compress knows the heads of one that shares a single layer (num_hidden_groups = inner_group_num = 1)"
        )
    if part == "neurons" and family in WITHOUT_NEURONS:
        return f"a layer of a {family} has several feed-forward networks, whose neurons compress does not remove"
    return ""


def heads_per_layer(model: PreTrainedModel) -> list[int]:
    """Return the number of heads of each layer; an empty list for a model without heads."""
    return [units.count for units in units_of(model)] if has_units(model) else []


def ffn_widths(model: PreTrainedModel) -> list[int]:
    """Return the inner width of each layer's feed-forward network; an empty list for a model without one."""
    if has_units(model, "neurons"):
        return [units.count for units in units_of(model, "neurons")]
    if stock_type(model.config) in WITHOUT_NEURONS:
        return [linear_of(layer, "intermediate.dense").out_features for layer in layers_of(model)]
    return []


def kept_layers(model: PreTrainedModel) -> list[int]:
    """Return the numbers that the present layers had before any pruning."""
    kept = getattr(model.config, "kept_layers", None)
    return list(range(len(layers_of(model)))) if kept is None else list(kept)


def has_heads(model: PreTrainedModel) -> bool:
    """Tell whether this project knows where the queries, keys and values of the model are."""
    return stock_type(model.config) in FAMILIES and has_units(model)


def attention_layers(model: PreTrainedModel) -> list[Units]:
    """Return the heads of each layer, where ``rows`` are the projections to queries, keys and values.

    Raises:
        CompressError: the heads of the model are not known here, or its attention is built otherwise than BERT's.
    """
    family = stock_type(model.config)
    refuse(
        (
            family in PRUNABLE and family not in FAMILIES,
            f"the attention of a {family!r} is built otherwise than BERT's, and nothing but pruning is made for it; "
            f"use one of {', '.join(sorted(FAMILIES))}",
        )
    )
    return units_of(model)
