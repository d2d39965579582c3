"""Fused fp32 graphs of models that call attention through transformers' ``AttentionInterface``.

ALBERT, BERT, DistilBERT, ELECTRA, MobileBERT, RoBERTa and XLM-R, stock or pruned. While the model is traced, its
attention function emits ``com.microsoft::MultiHeadAttention`` with that layer's own head count, so that uneven heads
stay fused. (ONNX Runtime's transformer optimiser takes one head count for the whole model and builds wrong graphs for
such models.)
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from compress.exporting.onnx_graph import ATTENTION, flat_attention, padding_only, write_fused_graph

MODEL_TYPES = ("albert", "bert", "distilbert", "electra", "mobilebert", "roberta", "xlm-roberta")


def export(model: PreTrainedModel, path: Path) -> None:
    AttentionInterface.register(ATTENTION, _attention)
    write_fused_graph(model, path, mask=padding_only)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    heads, size = query.shape[1], query.shape[3]
    query, key, value = (states.transpose(1, 2).flatten(2) for states in (query, key, value))  # of [B, H, T, d]
    context = flat_attention(query, key, value, attention_mask, heads=heads, scale=scaling)
    return torch.unflatten(context, 2, (heads, size)), None
