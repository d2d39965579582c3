"""Remove positions of the hidden size from the hidden states, and so from almost every weight.

What belongs to a position is found by torch-pruning's dependency graph, whatever the family calls it: the embeddings,
the layer norms, what reads the hidden states and what writes them. The pooled vector that some heads make of them is as
wide in every stock class, and loses the same positions. (Fang et al. 2023, "DepGraph: Towards Any Structural Pruning",
arXiv:2301.12900.) Shapes: D hidden width, d width of a head.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch_pruning
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.models.dummy_inputs import example_inputs
from compress.models.frozen_parameters import fixed_weights
from compress.models.modeling.families import PRUNABLE, head_size_of, layers_of, stock_type
from compress.models.modeling.pruned import kept_heads
from compress.models.prunable_units import units_of

# What modules call the number of columns and of rows of their weight.
_WIDTHS: dict[type[nn.Module], tuple[str, str]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: ("in_channels", "out_channels"),
    nn.Embedding: ("num_embeddings", "embedding_dim"),
}
WITHOUT = {
    "mobilebert": "its layers take their own norms and bottlenecks, whose widths hang together with the hidden one",
}


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
        module: Any = self.module
        if isinstance(module, nn.LayerNorm):
            module.normalized_shape = (len(positions),)
        else:
            names = _WIDTHS[type(module)]
            setattr(module, names[0] if self.reads else names[1], len(positions))


def members(model: PreTrainedModel) -> list[Member]:
    """Return the modules that positions of the hidden width have a share of, once for reading and once for writing.

    Raises:
        CompressError: a family that cannot be made narrower.
    """
    _check_family(model)
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


def remove_hidden(model: PreTrainedModel, positions: Iterable[int]) -> None:
    """Remove positions of the hidden width in place; the config says how wide the model is then.

    The width of a head stays. Because stock classes take it to be ``hidden_size / num_attention_heads``, positions go
    in multiples of it, ``config.num_attention_heads`` falls with them, and ``config.kept_heads`` says which of
    ``config.original_heads`` a layer really has.

    Raises:
        CompressError: positions that there are not, a number of them that leaves no multiple of the head's width, or a
            family that cannot be made narrower.
    """
    _check_family(model)
    config = model.config
    gone, width, size = sorted(set(positions)), int(config.hidden_size), head_size_of(config)
    if not gone:
        return
    if gone[0] < 0 or gone[-1] >= width:
        raise CompressError(f"there are no hidden positions {gone[0]} to {gone[-1]}; the model's are 0 to {width - 1}")
    left = width - len(gone)
    if left % size or not left:
        raise CompressError(
            f"{len(gone)} of {width} hidden positions cannot be removed: a head is {size} wide, so that a multiple of "
            f"{size} must go, at most {width - size}"
        )
    parts, table = members(model), model.get_input_embeddings()
    apart = not any(part.module is table for part in parts)
    if apart and left == config.embedding_size and stock_type(config) != "albert":
        raise CompressError(
            f"{len(gone)} of {width} hidden positions cannot be removed: {left} is the width of this model's "
            f"embeddings, where its family has no projection of them; remove {size} more or fewer"
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


def _group(graph: torch_pruning.DependencyGraph, module: nn.Module, cut: Callable[..., Any]) -> list[Member]:
    """Return the modules with weights that lose a position with one of them."""
    found = []
    for dependency, positions in graph.get_pruning_group(module, cut, idxs=[0]):
        target = dependency.target.module
        if next(target.parameters(), None) is None:
            continue
        if positions != [0]:
            raise RuntimeError(f"the positions of {dependency.target.name} are not those of the hidden states")
        # torch-pruning reports norms and tables as both, since their input and output are equally wide.
        reads = isinstance(target, nn.Linear | nn.Conv1d) and graph.is_in_channel_pruning_fn(dependency.handler)
        found.append(Member(target, reads))
    return found


def _check_family(model: PreTrainedModel) -> None:
    family = stock_type(model.config)
    possible = ", ".join(sorted(PRUNABLE.keys() - WITHOUT.keys()))
    if family in WITHOUT:
        raise CompressError(f"a {family} cannot be made narrower: {WITHOUT[family]}; {possible} can be")
    if family not in PRUNABLE:
        raise CompressError(
            f"the hidden width of a {model.config.model_type!r} model is not known to compress; {possible} can be "
            "made narrower"
        )
