"""Fused fp32 graphs of MPNet, stock or pruned.

MPNet does not use ``AttentionInterface`` and adds a relative position bias to the scores. While the model is traced,
the ``forward`` of each attention layer is replaced by one that emits ``com.microsoft::MultiHeadAttention`` with the
layer's head count and its rows of the bias.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from compress.exporting.onnx_graph import flat_attention, padding_only, write_fused_graph

MODEL_TYPES = ("mpnet",)


def export(model: PreTrainedModel, path: Path) -> None:
    encoder: Any = model.base_model.encoder

    def position_bias(hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """Return ``[1, H, T, T]``, once for the batch instead of once for each of its rows."""
        positions = torch.arange(hidden_states.size(1), device=hidden_states.device)
        buckets = encoder.relative_position_bucket(positions[None, :] - positions[:, None])
        return encoder.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    attentions = [layer.attention.attn for layer in encoder.layer]
    methods = [(attention, "forward", _forward(attention)) for attention in attentions]
    write_fused_graph(
        model, path, mask=padding_only, methods=[(encoder, "compute_position_bias", position_bias), *methods]
    )


def _forward(attention: Any) -> Any:
    def forward(
        hidden_states: Tensor, attention_mask: Tensor, position_bias: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor]:
        kept = getattr(attention, "kept_heads", None)
        bias = position_bias if kept is None else position_bias[:, kept]
        query, key, value = (linear(hidden_states) for linear in (attention.q, attention.k, attention.v))
        context = flat_attention(query, key, value, attention_mask, bias, heads=attention.num_attention_heads)
        return (attention.o(context),)

    return forward
