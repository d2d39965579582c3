"""Fused fp32 graphs of ModernBERT, stock or pruned.

One linear layer computes queries, keys and values, queries and keys are rotated by their positions, and most layers
attend to neighbours only. While the model is traced, the ``forward`` of each attention layer is replaced by one that
emits two ``com.microsoft::RotaryEmbedding`` and one ``com.microsoft::MultiHeadAttention`` with the layer's head count;
the window of a local layer is the bias of its attention. (Through ``AttentionInterface`` the rotation would become
several nodes.)
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from compress.exporting.onnx_graph import flat_attention, write_fused_graph
from compress.models.modeling.families import layers_of

_LENGTH_DEPENDENT = {"dynamic", "longrope"}
MODEL_TYPES = ("modernbert",)


def refusal(config: PretrainedConfig) -> str:
    """Say why a model of this config has no graph, or nothing: the angles may depend on how long a batch is."""
    types = {config.rope_parameters[kind]["rope_type"] for kind in config.layer_types}
    found = sorted(_LENGTH_DEPENDENT & types)
    reason = "turns queries and keys by other angles in longer batches, which a graph of one formula cannot"
    return f"its rope_type {found[0]!r} {reason}" if found else ""


def export(model: PreTrainedModel, path: Path) -> None:
    rotary: Any = model.base_model.rotary_emb
    layers: Any = layers_of(model)
    compute = rotary.forward

    def angles(hidden_states: Tensor, places: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return what ``RotaryEmbedding`` reads: the places ``[B, T]``, cosines and sines ``[T, d / 2]``.

        The model has every angle twice, once for each half of a head. The operator may also be given the first place
        of all rows only, but OpenVINO reads that otherwise and gives wrong logits without a warning (seen with
        2026.4.1).
        """
        cosines, sines = (table[0, :, : table.shape[-1] // 2] for table in compute(hidden_states, places, kind))
        return places.expand(hidden_states.shape[:2]), cosines, sines

    attentions = ((layer.attn, "forward", _forward(layer.attn)) for layer in layers)
    write_fused_graph(model, path, mask=_padding_and_window, methods=((rotary, "forward", angles), *attentions))


def _padding_and_window(
    *, q_length: int, attention_mask: Tensor, dtype: torch.dtype, local_size: int | None = None, **_: Any
) -> tuple[Tensor, Tensor | None]:
    """Serve as transformers' mask function: int32 ``[B, T]``, and of local layers the bias ``[1, 1, T, T]``.

    The bias is 0 where two tokens are at most ``local_size`` apart, and else the lowest number.
    """
    if local_size is None:
        return attention_mask.int(), None
    places = torch.arange(q_length)
    outside = (places[:, None] - places).abs() > local_size
    bias = torch.where(outside, torch.finfo(dtype).min, torch.zeros((), dtype=dtype))
    return attention_mask.int(), bias[None, None]


def _forward(attention: Any) -> Callable[..., tuple[Tensor, None]]:
    def forward(
        hidden_states: Tensor, position_embeddings: tuple[Tensor, ...], attention_mask: Any, **_: Any
    ) -> tuple[Tensor, None]:
        query, key, value = attention.Wqkv(hidden_states).chunk(3, dim=-1)
        padding, window = attention_mask
        heads = query.shape[2] // attention.head_dim
        query, key = (
            torch.onnx.ops.symbolic(
                "com.microsoft::RotaryEmbedding",
                [states, *position_embeddings],
                {"num_heads": heads, "interleaved": 0},  # OpenVINO does not know the default
                dtype=states.dtype,
                shape=states.shape,
                version=1,
            )
            for states in (query, key)
        )
        return attention.Wo(flat_attention(query, key, value, padding, window, heads=heads)), None

    return forward
