"""Where the heads of a model are, gates on them, and their removal.

transformers 5 has neither ``head_mask`` nor ``prune_heads`` (it ignores the former in silence), so that the gates are
ours: a forward pre-hook on every attention output projection. Shapes: B batch, T tokens, L layers, H heads, d width
of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch_pruning
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.modeling.pruned import FAMILIES, head_size_of, keep_mpnet_heads, layers_of, linear_of, stock_type

# Families whose four projections are cut by their names instead of by what depends on what. MPNet adds one position
# bias to the scores of every layer, so that the dependency graph couples the heads of all layers; the bias stays whole
# and each layer takes its rows of it. MobileBERT's norms are bare parameters, which the graph does not know.
_SLICED_BY_NAME = ("mpnet", "mobilebert")


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
    """Tell whether this project knows where the heads of the model are."""
    return stock_type(model.config) in FAMILIES and not _has_several_shared_layers(model)


def _has_several_shared_layers(model: PreTrainedModel) -> bool:
    """Tell whether a model is an ALBERT that shares more than one layer; every published one shares one."""
    groups = (getattr(model.config, "num_hidden_groups", 1), getattr(model.config, "inner_group_num", 1))
    return groups != (1, 1)


def attention_layers(model: PreTrainedModel) -> list[AttentionLayer]:
    """Return the attention layers from the first to the last, L of them.

    These are the layers that there are weights of: ALBERT's one layer comes once, however often it is used. Gates on
    its heads act at every use, and removing a head removes it from all of them.

    Raises:
        CompressError: for a model whose heads this project does not know.
    """
    names = FAMILIES.get(stock_type(model.config))
    if names is None:
        raise CompressError(
            f"the attention heads of a {model.config.model_type!r} model are not known to compress; "
            f"heads can be removed from {', '.join(sorted(FAMILIES))}"
        )
    if _has_several_shared_layers(model):
        raise CompressError(
            f"this ALBERT shares {model.config.num_hidden_groups} groups of {model.config.inner_group_num} layers; "
            "compress knows the heads of one that shares a single layer (num_hidden_groups = inner_group_num = 1)"
        )
    head_size = head_size_of(model.config)
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


def heads_per_layer(model: PreTrainedModel) -> list[int]:
    """Return the number of heads of each layer; an empty list for a model without heads, such as a BiLSTM."""
    return [layer.heads for layer in attention_layers(model)] if has_heads(model) else []


def ffn_widths(model: PreTrainedModel) -> list[int]:
    """Return the inner width of each layer's feed-forward network; an empty list for a model without one."""
    if not has_heads(model):
        return []
    widened = FAMILIES[stock_type(model.config)].widened
    return [linear_of(layer, widened).out_features for layer in layers_of(model)]


def kept_heads(model: PreTrainedModel) -> list[list[int]]:
    """Return, per layer, the numbers that the present heads had before any pruning."""
    kept = getattr(model.config, "kept_heads", None)
    if kept is None:
        return [list(range(layer.heads)) for layer in attention_layers(model)]
    return [list(heads) for heads in kept]


@dataclass
class Gates:
    """Factors on the heads' outputs while :func:`head_gates` is open. Made by that function.

    ``masks`` are fixed ``[H]`` tensors, ``examples`` are ``[B, H]`` tensors of ones that require a gradient; both
    have one entry a layer, or none when they are not in use. A head's output is multiplied by both.
    """

    heads: list[int]
    device: torch.device
    masks: list[Tensor] = field(default_factory=list)
    examples: list[Tensor] = field(default_factory=list)

    def mask(self, masks: Sequence[Sequence[float] | Tensor] | None) -> None:
        """Simulate removal: one row of H factors (1 keeps, 0 removes) a layer; None takes every mask away."""
        rows = [torch.as_tensor(row, dtype=torch.float32, device=self.device) for row in masks or ()]
        if masks is not None and [row.numel() for row in rows] != self.heads:
            raise ValueError(f"masks of {[row.numel() for row in rows]} heads do not fit a model of {self.heads}")
        self.masks = rows

    def per_example(self, batch_size: int) -> list[Tensor]:
        """Return fresh gates of ones, ``[B, H]`` a layer.

        After one backward of the *summed* loss of a batch of B, row b of ``gate.grad`` is the gradient of example b.
        """
        self.examples = [torch.ones(batch_size, heads, device=self.device, requires_grad=True) for heads in self.heads]
        return self.examples

    def _apply(self, layer: int, context: Tensor) -> Tensor:
        """Multiply the concatenated head outputs ``[B, T, H*d]`` by the layer's factors."""
        if not self.masks and not self.examples:
            return context
        by_head = context.unflatten(-1, (self.heads[layer], -1))
        if self.masks:
            by_head = by_head * self.masks[layer].to(context.dtype).view(1, 1, -1, 1)
        if self.examples:
            by_head = by_head * self.examples[layer].to(context.dtype)[:, None, :, None]
        return by_head.flatten(-2)


@contextmanager
def head_gates(model: PreTrainedModel) -> Iterator[Gates]:
    """Put gates on every head of a model; they are gone when the block ends.

    Until :meth:`Gates.mask` or :meth:`Gates.per_example` is called the model computes what it always does.
    """
    layers = attention_layers(model)
    gates = Gates([layer.heads for layer in layers], layers[0].output.weight.device)

    def hook(index: int) -> Any:
        return lambda module, inputs: (gates._apply(index, inputs[0]), *inputs[1:])

    handles = [layer.output.register_forward_pre_hook(hook(index)) for index, layer in enumerate(layers)]
    try:
        yield gates
    finally:
        for handle in handles:
            handle.remove()


def gates_work(model: PreTrainedModel) -> bool:
    """Tell whether gates reach the logits: closing the heads of any single layer must change them."""
    inputs = example_inputs(model)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), head_gates(model) as gates:
            reference = model(**inputs).logits
            for closed in range(len(gates.heads)):
                gates.mask([[float(index != closed)] * heads for index, heads in enumerate(gates.heads)])
                if torch.equal(model(**inputs).logits, reference):
                    return False
            return True
    finally:
        model.train(was_training)


def remove_heads(model: PreTrainedModel, remove: Mapping[int, Sequence[int]]) -> None:
    """Slice heads out of the weights, in place, and write the heads that are left to ``config.kept_heads``.

    The model computes what it computed with these heads masked. To save it, turn it into a class that reloads with
    :func:`compress.modeling.pruned.to_pruned`.

    Args:
        model: a model of a known family, pruned before or not.
        remove: layer -> positions among that layer's *present* heads.

    Raises:
        CompressError: a layer or position that the model does not have, or a layer that would lose its last head.
    """
    layers = attention_layers(model)
    kept = kept_heads(model)
    chosen = {index: sorted({int(position) for position in remove[index]}) for index in sorted(remove)}
    chosen = {index: positions for index, positions in chosen.items() if positions}
    for index, positions in chosen.items():
        if not 0 <= index < len(layers):
            raise CompressError(f"there is no layer {index}; the model has layers 0 to {len(layers) - 1}")
        heads = layers[index].heads
        if positions[0] < 0 or positions[-1] >= heads:
            raise CompressError(f"layer {index} has no head at {positions}; its positions are 0 to {heads - 1}")
        if len(positions) == heads:
            raise CompressError(f"all {heads} heads of layer {index} would go; each layer keeps at least one head")
    for index, positions in chosen.items():
        kept[index] = [head for position, head in enumerate(kept[index]) if position not in positions]
    if chosen:
        _slice(model, layers, chosen)
    if stock_type(model.config) == "mpnet":
        for index in range(len(layers)):
            keep_mpnet_heads(model, index, kept[index])
    model.config.kept_heads = kept


def _slice(model: PreTrainedModel, layers: list[AttentionLayer], chosen: Mapping[int, list[int]]) -> None:
    """Cut rows of q, k, v and columns of the output projection with torch-pruning."""
    graph = None if stock_type(model.config) in _SLICED_BY_NAME else _dependency_graph(model)
    for index, positions in chosen.items():
        layer = layers[index]
        rows = [head * layer.head_size + offset for head in positions for offset in range(layer.head_size)]
        if graph is not None:
            graph.get_pruning_group(layer.value, torch_pruning.prune_linear_out_channels, rows).prune()
        else:
            for projection in (layer.query, layer.key, layer.value):
                torch_pruning.prune_linear_out_channels(projection, rows)
            torch_pruning.prune_linear_in_channels(layer.output, rows)


def _dependency_graph(model: PreTrainedModel) -> torch_pruning.DependencyGraph:
    """Trace the model. The graph is read from autograd, so that every weight must ask for a gradient meanwhile."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    was_training = model.training
    model.eval().requires_grad_(True)
    try:
        with torch.enable_grad():
            return torch_pruning.DependencyGraph().build_dependency(
                model, example_inputs=example_inputs(model), output_transform=lambda outputs: outputs.logits
            )
    finally:
        model.train(was_training)
        for parameter in frozen:
            parameter.requires_grad_(False)


def example_inputs(model: PreTrainedModel, batch_size: int = 2, length: int = 8, seed: int = 0) -> dict[str, Tensor]:
    """Return token ids and mask ``[B, T]`` that are no text but run through the model; no token is padding."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = getattr(model.config, "tokenizer_size", model.config.vocab_size)
    lowest = min(5, vocabulary - 1)  # 0 to 4 are padding and the other special tokens of every family
    input_ids = torch.randint(lowest, vocabulary, (batch_size, length), generator=generator)
    if getattr(model.config, "pairs", "") == "siamese":  # two texts, of different lengths
        input_ids[:, length // 3] = model.config.separator_token_id
    device = next(model.parameters()).device
    return {"input_ids": input_ids.to(device), "attention_mask": torch.ones_like(input_ids, device=device)}
