"""The four projections of attention, in families that have one linear layer for each."""

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.models.modeling.families import FAMILIES, PRUNABLE, head_size_of, layers_of, linear_of, stock_type
from compress.models.prunable_units import has_units, units_of


@dataclass(frozen=True)
class AttentionLayer:
    """The four projections of one self-attention layer and the width of a head."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    head_size: int

    @property
    def heads(self) -> int:
        return self.output.in_features // self.head_size


def has_heads(model: PreTrainedModel) -> bool:
    """Tell whether the model has such attention layers and this project knows where they are."""
    return stock_type(model.config) in FAMILIES and has_units(model)


def attention_layers(model: PreTrainedModel) -> list[AttentionLayer]:
    """Return the attention layers from the first to the last, L of them; ALBERT's shared one comes once.

    Raises:
        CompressError: for a model whose heads this project does not know, or which has one linear layer for all three.
    """
    family = stock_type(model.config)
    if family in PRUNABLE and family not in FAMILIES:
        raise CompressError(
            f"the attention of a {family!r} is built otherwise than BERT's, and nothing but pruning is made for it; "
            f"use one of {', '.join(sorted(FAMILIES))}"
        )
    units_of(model)  # says why it has none
    names, head_size = FAMILIES[family], head_size_of(model.config)
    return [
        AttentionLayer(
            query=linear_of(layer, names.query),
            key=linear_of(layer, names.key),
            value=linear_of(layer, names.value),
            output=linear_of(layer, names.output),
            head_size=head_size,
        )
        for layer in layers_of(model)
    ]
