"""Fused fp32 graphs of DeBERTa-v2 and DeBERTa-v3, stock or pruned.

DeBERTa does not use ``AttentionInterface``: it adds content-to-position and position-to-content terms to the scores.
While the model is traced, the ``forward`` of each attention layer is replaced by one that emits
``com.microsoft::MultiHeadAttention`` with the layer's head count and these two terms as its bias.

The projections of the relative positions do not depend on the text: the graph holds one table for each layer and term,
``[2 S, H d]``. A batch of length T takes the 2 T rows of its distances, multiplies them by all queries (keys) at once,
and shifts each row so that equal pairs align. Torch multiplies by all 2 S positions and gathers afterwards, which costs
13 to 18% more time at up to 128 tokens and 8% less at 512 (S = 256, 768 wide, ONNX Runtime on one thread).
"""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from compress.exporting.onnx_graph import Method, flat_attention, write_fused_graph

MODEL_TYPES = ("deberta-v2",)


def export(model: PreTrainedModel, path: Path) -> None:
    encoder: Any = model.base_model.encoder
    with torch.no_grad():
        embeddings = encoder.get_rel_embedding()
        attentions = [layer.attention.self for layer in encoder.layer]
        methods: list[Method] = [(attention, "forward", _forward(attention, embeddings)) for attention in attentions]
    # [B, T]: torch also masks queries of padding, which are not read
    methods += [(encoder, "get_attention_mask", Tensor.int), (encoder, "get_rel_pos", _positions(encoder))]
    write_fused_graph(model, path, methods=methods)


def _positions(encoder: Any) -> Callable[..., tuple[Tensor, Tensor] | None]:
    """Return a function that returns the rows of the tables that a batch needs, for queries and for keys, ``[2 T]``.

    Column m of a query has the distance ``T - m``, that of a key ``m - T``. The logarithms are computed here, by torch:
    with other rounding, a distance could fall into a neighbouring bucket. All distances from ``largest`` on are in the
    last bucket, whatever the length.
    """
    if not encoder.relative_attention:
        return lambda *_: None
    largest, buckets = encoder.max_relative_positions, encoder.position_buckets
    distances, half = torch.arange(-largest, largest + 1), largest
    if buckets > 0:
        distances, half = make_log_bucket_position(distances, buckets, largest).long(), buckets
    rows = (distances + half).clamp(0, 2 * half - 1)

    def rows_of(hidden_states: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        length = hidden_states.shape[1]
        found = torch.arange(-length, length).clamp(-largest, largest)
        return rows.index_select(0, largest - found), rows.index_select(0, largest + found)

    return rows_of


def _forward(attention: Any, positions: Tensor | None) -> Callable[..., tuple[Tensor, None]]:
    kinds, size, shared = attention.pos_att_type, attention.attention_head_size, attention.share_att_key
    scale = (size * (1 + ("c2p" in kinds) + ("p2c" in kinds))) ** -0.5
    keys = queries = None
    if attention.relative_attention and "c2p" in kinds:
        keys = scale * (attention.key_proj if shared else attention.pos_key_proj)(positions)
    if attention.relative_attention and "p2c" in kinds:
        queries = scale * (attention.query_proj if shared else attention.pos_query_proj)(positions)

    def by_head(states: Tensor) -> Tensor:
        return torch.unflatten(states, -1, (-1, size)).transpose(-3, -2)

    def term(states: Tensor, table: Tensor, rows: Tensor) -> Tensor:
        """Return ``[B, H, T, T]``: what queries (keys) and positions add to the scores, a query (key) in every row.

        Of row i of the products ``[B, H, T, 2 T]`` these are the columns from ``T - i`` on.
        """
        products = by_head(states) @ by_head(table.index_select(0, rows)).transpose(1, 2)
        length = products.shape[2]
        shifted = torch.unflatten(products.flatten(2)[..., length:], 2, (length, 2 * length - 1))
        return shifted[..., :length]

    def forward(
        hidden_states: Tensor, attention_mask: Tensor, *_: Any, relative_pos: Any, **__: Any
    ) -> tuple[Tensor, None]:
        linears = (attention.query_proj, attention.key_proj, attention.value_proj)
        query, key, value = (linear(hidden_states) for linear in linears)
        terms = []
        if keys is not None:
            terms.append(term(query, keys, relative_pos[0]))
        if queries is not None:
            terms.append(term(key, queries, relative_pos[1]).transpose(2, 3))
        bias = reduce(Tensor.add, terms) if terms else None
        heads = attention.num_attention_heads
        return flat_attention(query, key, value, attention_mask, bias, heads=heads, scale=scale), None

    return forward
