"""The losses of a training as functions, and the modules that they train with the student."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from compress import plugins
from compress.recipes import Choice

LOSS_MODULES = "loss_modules"  # a submodule of the student while it trains, so that checkpoints hold it


class WeightedLoss(NamedTuple):
    """A loss: its weight, its function of student, teacher and batch, the module that it trains, if any, and its count.

    ``mean_over`` names what it is a mean over, of :func:`compress.training.batches.counts_of`. ``computes_in`` is
    ``float32``, or ``run`` for that of the training.
    """

    weight: float
    function: Callable[..., Tensor]
    trained: list[nn.Module]
    mean_over: str
    computes_in: str


def attach_losses(
    chosen: Sequence[Choice], teacher: PreTrainedModel | None, model: PreTrainedModel
) -> list[WeightedLoss]:
    """Return losses as functions; their modules become a submodule of ``model`` until :func:`detach_loss_modules`."""
    losses: list[WeightedLoss] = []
    modules = nn.ModuleDict()
    for number, choice in enumerate(chosen):
        plugin = plugins.find("losses", choice.name)
        module = plugin.load()
        trained: list[nn.Module] = []
        if learned := getattr(module, "learned", None):
            taken = inspect.signature(learned).parameters
            options = {name: value for name, value in choice.options.items() if name in taken}
            trained = [learned(model, teacher, **options)]
            modules[f"{number}_{choice.name.replace('-', '_')}"] = trained[0]
        losses.append(
            WeightedLoss(
                choice.weight,
                partial(plugin.function, **choice.options),
                trained,
                mean_over=getattr(module, "MEAN_OVER", "answers"),
                computes_in=getattr(module, "COMPUTES_IN", "float32"),
            )
        )
    if modules:
        model.add_module(LOSS_MODULES, modules.to(model.device))
    return losses


def detach_loss_modules(model: PreTrainedModel) -> nn.Module | None:
    """Remove from the model and return the modules that losses trained with it; None when there are none."""
    return model._modules.pop(LOSS_MODULES, None)
