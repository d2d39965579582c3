"""Plan a pruning: turn the amounts of a configuration into numbers for one model, and check them before any work."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from compress import plugins
from compress.errors import CompressError
from compress.models.modeling.families import head_size_of, layers_of
from compress.models.prunable_units import Part, has_heads, has_units, units_of
from compress.pruning.choose_units import mask_least_important
from compress.recipes import Pruning
from compress.recipes.pruning import MOST, units_to_remove
from compress.surgery.remove_hidden import members, remove_hidden
from compress.surgery.remove_layers import removable_layers, remove_layers

OPTIONS: Mapping[Part, str] = {"heads": "--heads", "neurons": "--ffn"}


@dataclass(frozen=True)
class PruningPlan:
    """What to remove from one model, as far as it is known before anything is scored.

    Args:
        config: the configuration that was planned: it says how layers, heads and neurons are chosen.
        layers: number of layers to remove.
        units: number of heads and neurons to remove, by part; with a target at most so many. Where layers that are
            removed before have unequal numbers of them, :func:`plan_units` tells the final numbers.
        hidden: number of positions of the hidden size to remove.
    """

    config: Pruning
    layers: int
    units: Mapping[Part, int]
    hidden: int


def plan_pruning(model: PreTrainedModel, config: Pruning, *, vocabulary: bool = False) -> PruningPlan:
    """Return what to remove from a model, with a ``vocabulary`` or not, having tried the removals on a copy.

    The layers to remove are not chosen yet; the first removable ones stand for them.

    Raises:
        CompressError: nothing to remove, or a model from which it cannot be removed.
    """
    if not (config.removes_units or config.layers or config.hidden or vocabulary):
        raise CompressError(
            "nothing to remove; say what with --heads 60%, --ffn 40%, --layers 2, --hidden 25% or --vocabulary FILE, "
            "or how far to go with --max-accuracy-drop 1.0 or --speedup 1.5"
        )
    if config.recovery == "relations" and not has_heads(model):
        raise CompressError(
            f"--recovery relations reads queries, keys and values, which compress does not know where to find in a "
            f"{model.config.model_type!r} model; use --recovery logits or hidden"
        )
    smaller, layers, units, hidden = deepcopy(model), 0, dict[Part, int](), 0
    if config.layers:
        removable, there = removable_layers(model), len(layers_of(model))
        layers = units_to_remove("--layers", config.layers, [there], "layers", keep=max(1, there - len(removable)))
        remove_layers(smaller, removable[:layers])
    if config.removes_units:
        units = plan_units(smaller, config)
    dropout = any(module.p > 0 for module in model.modules() if isinstance(module, nn.Dropout))
    if config.schedule == "cubic" and not layers and not dropout:
        # Without dropout student and teacher are equal at first: the first units would be chosen by rounding errors.
        raise CompressError(
            "--schedule cubic masks units by the gradients of its training, which begin at zero for a model without "
            "dropout such as this one; use --schedule steps, or remove --layers too"
        )
    if config.hidden:
        members(model)  # raises for a family that cannot be made narrower
        hidden = _hidden_positions(model, config)
        remove_hidden(smaller, range(hidden))
    return PruningPlan(config, layers, units, hidden)


def plan_units(model: PreTrainedModel, config: Pruning) -> dict[Part, int]:
    """Return how many heads and neurons to remove. A target without amounts may remove as many as possible.

    Raises:
        CompressError: an amount that the model cannot give, or a criterion that does not score a part.
    """
    asked: dict[Part, str] = {"heads": config.heads, "neurons": config.ffn}
    if config.has_target and not any(asked.values()):
        asked = {
            part: MOST
            for part in asked
            if has_units(model, part) and any(units.count > config.kept(part) for units in units_of(model, part))
        }
        if not asked:
            raise CompressError("every layer of this model has as few heads and neurons as it keeps; remove --layers")
    present = {part: [units.count for units in units_of(model, part)] for part, amount in asked.items() if amount}
    amounts = {
        part: units_to_remove(OPTIONS[part], asked[part], counts, part, keep=config.kept(part))
        for part, counts in present.items()
    }
    if "neurons" in amounts and "part" not in plugins.find("criteria", config.criterion).parameters:
        able = [name for name in plugins.names("criteria") if "part" in plugins.find("criteria", name).parameters]
        raise CompressError(
            f"--criterion {config.criterion} scores heads only, and neurons of feed-forward networks are to be removed "
            f"too; use {', '.join(able)}, or remove heads only with --heads"
        )
    if not config.has_target:
        for part, count in amounts.items():
            _check_rounding(part, present[part], count, config)
    return amounts


def _check_rounding(part: Part, present: Sequence[int], count: int, config: Pruning) -> None:
    """Raise an error for a count that rounding turns into zero, which does not depend on the scores."""
    masks, scores = [torch.ones(units) for units in present], torch.zeros(len(present), max(present))

    def removes_any(number: int) -> bool:
        return not all(bool(row.all()) for row in mask_least_important(masks, scores, number, part, config))

    if removes_any(count):
        return
    numbers = range(count + 1, sum(units - config.kept(part) for units in present) + 1)
    least = bisect_left(numbers, True, key=removes_any)
    raise CompressError(
        f"{OPTIONS[part]} {count} of {sum(present)} {part} would remove none: "
        + ("all layers come down to one width" if config.scope == "layer" else "widths are rounded")
        + (f", in multiples of {config.multiple}" if part == "neurons" else "")
        + (f"; ask for {numbers[least]} or more" if least < len(numbers) else "")
    )


def _hidden_positions(model: PreTrainedModel, config: Pruning) -> int:
    """Return the multiple of a head's width that is nearest to the amount."""
    size, width = head_size_of(model.config), int(model.config.hidden_size)
    asked = units_to_remove("--hidden", config.hidden, [width], "hidden dimensions", keep=size)
    if 2 * asked < size:
        raise CompressError(
            f"--hidden {config.hidden} of {width} hidden dimensions would remove none: they go in widths of a head, "
            f"multiples of {size}; ask for {-(-size // 2)} or more"
        )
    return min(math.floor(asked / size + 0.5) * size, width - size)
