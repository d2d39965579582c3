"""The convolutional classifier of Kim 2014 (arXiv:1408.5882), as a transformers model.

Its first layer is linear in the embeddings, so that an export multiplies both into a table with a row for each token
and place (the pre-computation of Devlin et al. 2014, "Fast and Robust Neural Network Joint Models for Statistical
Machine Translation"): ``graph.py`` beside this file.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..small import SmallConfig, SmallModel

POOLING = ("max", "max-mean")


class CNNConfig(SmallConfig):
    """Widths of a :class:`CNNForSequenceClassification`.

    ``widths`` are how many tokens windows have, with ``filters`` of each. ``second_filters`` is the number of filters
    of a second layer, over windows of ``second_width`` positions of the first; 0 for none. ``pooling`` is ``"max"`` or
    ``"max-mean"``, both side by side.
    """

    model_type = "compress-cnn"

    widths: Sequence[int] = (1, 2, 3, 4)
    filters: int = 100
    second_filters: int = 0
    second_width: int = 3
    pooling: str = "max"


class CNNForSequenceClassification(SmallModel):
    """Embedding -> windows of several widths around every token -> ReLU -> pooling over tokens -> ReLU layer -> logits.

    A window of ``w`` tokens reaches from ``(w - 1) // 2`` tokens before to ``w // 2`` after its own; beyond the text
    there are zeros, so that padding changes nothing. ``first`` has the weights of all widths and offsets side by side:
    for each width the blocks of its offsets from left to right, of ``filters`` each.
    """

    config_class = CNNConfig
    base_model_prefix = "cnn"
    sparse = True

    def add_layers(self, config: CNNConfig) -> int:
        features = len(config.widths) * config.filters
        self.first = nn.Linear(config.embedding_size, sum(config.widths) * config.filters, bias=False)
        self.first_bias = nn.Parameter(torch.zeros(features))
        if config.second_filters:
            self.second = nn.Linear(features, config.second_width * config.second_filters, bias=False)
            self.second_bias = nn.Parameter(torch.zeros(config.second_filters))
            features = config.second_filters
        return features * (2 if config.pooling == "max-mean" and not self.tags else 1)

    def encode_tokens(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        states = torch.relu(self._window_sums(input_ids, lengths))
        if self.config.second_filters:
            parts = self.second(states).chunk(self.config.second_width, dim=-1)
            offsets = offsets_of(self.config.second_width)
            states = torch.stack([shifted(*place) for place in zip(parts, offsets, strict=True)]).sum(dim=0)
            states = torch.relu(states + self.second_bias) * in_text(input_ids, lengths)[..., None]
        return states

    def _window_sums(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the first layer's sums ``[B, T, features]``, zeros beyond the text.

        In training, products with the weights are computed once for each distinct token of the batch: a batch of about
        3,300 tokens has about 1,150. A token's dropout is then the same wherever it stands. The bias is added to the
        products of a window's own token, which every window has.
        """
        config = self.config
        tokens = self.remap[input_ids]
        if self.training:
            tokens, numbers = torch.unique(tokens, return_inverse=True)
        else:  # sizes must not depend on the ids: CUDA graphs are recorded, operations counted
            numbers = torch.arange(tokens.numel(), device=tokens.device).view_as(tokens)
            tokens = tokens.flatten()
        nothing = len(tokens)  # the number of what is beyond the text
        biases = [
            bias if offset == 0 else torch.zeros_like(bias)
            for width, bias in zip(config.widths, self.first_bias.split(config.filters), strict=True)
            for offset in offsets_of(width)
        ]
        embedded = self.dropout(self.embedding(tokens))
        products = nn.functional.linear(embedded, self.first.weight, torch.cat(biases)).view(-1, config.filters)
        # Gradients of frequent tokens are long sums, which bfloat16 cannot hold.
        products = nn.functional.pad(products.to(self.first_bias.dtype), (0, 0, 0, 1))
        is_text = in_text(input_ids, lengths)
        numbers = numbers.masked_fill(~is_text, nothing)
        offsets = [offset for width in config.widths for offset in offsets_of(width)]
        around = torch.cat([shifted(numbers[..., None], offset, nothing) for offset in offsets], dim=-1)
        rows, padding = around * len(offsets) + torch.arange(len(offsets), device=around.device), nothing * len(offsets)
        rows = rows.clamp(max=padding).masked_fill(~is_text[..., None], padding).flatten(0, 1)
        sums = [
            nn.functional.embedding_bag(window, products, mode="sum", padding_idx=padding)
            for window in rows.split(config.widths, dim=-1)
        ]
        return torch.cat(sums, dim=-1).view(*input_ids.shape, -1)

    def encode(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        states = self.encode_tokens(input_ids, lengths)
        found = states.amax(dim=1)  # after a ReLU nothing is below the zeros of the padding
        if self.config.pooling == "max-mean":
            found = torch.cat((found, states.sum(dim=1) / lengths.clamp(min=1)[:, None]), dim=-1)
        return found


def in_text(input_ids: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(input_ids.shape[1], device=input_ids.device) < lengths[:, None]


def offsets_of(width: int) -> range:
    """Return where the tokens of a window are, relative to its own."""
    return range(-((width - 1) // 2), width // 2 + 1)


def shifted(states: Tensor, offset: int, nothing: int = 0) -> Tensor:
    """Return ``[B, T, F]`` whose place ``t`` has what was at ``t + offset``, and ``nothing`` where nothing was."""
    padded = nn.functional.pad(states, (0, 0, max(0, -offset), max(0, offset)), value=nothing)
    return padded[:, max(0, offset) : max(0, offset) + states.shape[1]]


class CNNForTokenClassification(CNNForSequenceClassification):
    """The same layers as a tagger: at every token the features of its windows -> ReLU layer -> logits."""

    tags = True
