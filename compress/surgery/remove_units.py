"""Remove heads and neurons from the weights with torch-pruning.

The model then computes what it computed with them masked, and its config says what is left. To save it, turn it into a
class that reloads with :func:`compress.models.modeling.pruned.to_pruned`.
"""

from collections.abc import Mapping, Sequence

import torch_pruning
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.models.modeling.pruned import kept_heads, tell_heads
from compress.models.prunable_units import Part, Units, ffn_widths, units_of


def remove_heads(model: PreTrainedModel, remove: Mapping[int, Sequence[int]]) -> None:
    """Remove attention heads in place and write the ones that are left to ``config.kept_heads``.

    Args:
        model: a model of a known family, pruned before or not.
        remove: layer -> positions among that layer's *present* heads.

    Raises:
        CompressError: a layer or position that the model does not have, or a layer that would lose its last head.
    """
    chosen, kept = _remove(model, remove, "heads"), kept_heads(model)
    for index, positions in chosen.items():
        kept[index] = [head for position, head in enumerate(kept[index]) if position not in positions]
    tell_heads(model, kept)
    model.config.kept_heads = kept


def remove_neurons(model: PreTrainedModel, remove: Mapping[int, Sequence[int]]) -> None:
    """Remove neurons of feed-forward networks in place and write the widths left to ``config.ffn_per_layer``.

    Arguments and errors are those of :func:`remove_heads`, with neurons in place of heads.
    """
    _remove(model, remove, "neurons")
    model.config.ffn_per_layer = ffn_widths(model)


def _remove(model: PreTrainedModel, remove: Mapping[int, Sequence[int]], part: Part) -> dict[int, list[int]]:
    """Slice units out of the weights; return which, layer by layer, without those that lose nothing."""
    layers, unit = units_of(model, part), part.removesuffix("s")
    chosen = {index: sorted({int(position) for position in remove[index]}) for index in sorted(remove)}
    chosen = {index: positions for index, positions in chosen.items() if positions}
    for index, positions in chosen.items():
        if not 0 <= index < len(layers):
            raise CompressError(f"there is no layer {index}; the model has layers 0 to {len(layers) - 1}")
        count = layers[index].count
        if positions[0] < 0 or positions[-1] >= count:
            raise CompressError(f"layer {index} has no {unit} at {positions}; its positions are 0 to {count - 1}")
        if len(positions) == count:
            raise CompressError(f"all {count} {part} of layer {index} would go; each layer keeps at least one {unit}")
    for index, positions in chosen.items():
        _slice(layers[index], positions)
    return chosen


def _slice(units: Units, positions: Sequence[int]) -> None:
    """Remove the rows and columns of some units of a layer; parameters keep their requires_grad."""
    rows, columns = units.rows_of(positions), units.columns_of(positions)
    for linear in (*units.rows, units.columns):
        learns = {name: parameter.requires_grad for name, parameter in linear.named_parameters()}
        if linear is units.columns:
            torch_pruning.prune_linear_in_channels(linear, columns)
        else:
            torch_pruning.prune_linear_out_channels(linear, rows)
        for name, parameter in linear.named_parameters():
            parameter.requires_grad_(learns[name])
