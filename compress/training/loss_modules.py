"""The losses of a training as functions, and the modules that they train with the student and discard at the end.

Shapes: N tokens, D hidden width, E width of the embeddings, V size of the vocabulary.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from compress import plugins
from compress.models.batch import NO_TARGET, Batch, Outputs
from compress.models.components import input_embeddings
from compress.models.modeling.families import stock_type
from compress.recipes import Choice

LOSS_MODULES = "loss_modules"  # a submodule of the student while it trains, so that checkpoints hold it
GELU_HEADS = frozenset({"electra", "mpnet", "roberta", "xlm-roberta"})  # whatever their layers have


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


def width_projection(student: PreTrainedModel, teacher: PreTrainedModel, *, projected: bool = False) -> nn.Module:
    """Return a linear map from the student's hidden width to the teacher's; the identity where none is needed."""
    ours, theirs = student.config.hidden_size, teacher.config.hidden_size
    return nn.Linear(ours, theirs) if projected or ours != theirs else nn.Identity()


def head_activation(model: PreTrainedModel) -> nn.Module:
    """Return the nonlinearity of a family's head for masked tokens: its layers', where it is not GELU by itself."""
    if stock_type(model.config) in GELU_HEADS:
        return nn.GELU()
    name = getattr(model.config, "activation", None) or getattr(model.config, "hidden_act", "gelu")
    return cast(nn.Module, ACT2FN[name])


class VocabularyHead(nn.Module):
    """From hidden states ``[N, D]`` to logits over the vocabulary ``[N, V]``: BERT's head for masked tokens.

    Dense layer, nonlinearity, layer norm, then the product with the model's own input embeddings and a bias (Devlin et
    al. 2019, arXiv:1810.04805). The dense layer ends in the width of the embeddings, which a factorised model has
    smaller. The nonlinearity is the one that the model's family has in its head, so that the head can become that one.

    Args:
        model: whose embeddings are used. They stay the model's: the head neither saves nor moves them.
        frozen: the head's losses do not train these embeddings.
    """

    def __init__(self, model: PreTrainedModel, *, frozen: bool = False) -> None:
        super().__init__()
        embedding = input_embeddings(model)
        self.tied = (embedding,)  # in a tuple, a module is not registered as a submodule
        self.frozen = frozen
        self.dense = nn.Linear(model.config.hidden_size, embedding.embedding_dim)
        if self.dense.in_features == self.dense.out_features:
            # Layers add to their inputs, so that hidden states are close to the embeddings: a head learns faster from
            # the identity than from random numbers.
            nn.init.eye_(self.dense.weight)
        self.activation = head_activation(model)
        self.norm = nn.LayerNorm(embedding.embedding_dim, eps=getattr(model.config, "layer_norm_eps", 1e-12))
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    def forward(self, hidden: Tensor) -> Tensor:
        weight = self.tied[0].weight
        transformed = self.norm(self.activation(self.dense(hidden.float())))
        return nn.functional.linear(transformed, weight.detach() if self.frozen else weight, self.bias).float()


def masked_tokens(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the last hidden states ``[N, D]`` of masked tokens, and the original ids ``[N]``."""
    if batch.targets is None:
        raise ValueError("a batch without masked tokens reached a loss that predicts them")
    chosen = batch.targets != NO_TARGET
    return outputs.hidden[-1][chosen], batch.targets[chosen]
