"""The bidirectional LSTM classifier of Tang et al. 2019 (arXiv:1903.12136), as a transformers model.

This file imports only torch and transformers: it travels in the model directory, so that the model opens with
``trust_remote_code=True`` where ``compress`` is not installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class BiLSTMConfig(PretrainedConfig):
    """Widths of a :class:`BiLSTMForSequenceClassification`.

    ``tokenizer_size`` is the teacher's vocabulary, whose token ids the model reads; ``vocab_size`` is the number of
    embeddings it keeps. ``base_model_type`` is the teacher's, so that an ONNX directory can name a stock tokenizer.
    """

    model_type = "compress-bilstm"

    def __init__(
        self,
        tokenizer_size: int = 30522,
        vocab_size: int = 30522,
        embedding_size: int = 300,
        hidden_size: int = 150,
        dense_size: int = 200,
        dropout: float = 0.1,
        base_model_type: str = "bert",
        **kwargs: Any,
    ) -> None:
        self.tokenizer_size = tokenizer_size
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.dense_size = dense_size
        self.dropout = dropout
        self.base_model_type = base_model_type
        super().__init__(**kwargs)


class BiLSTMForSequenceClassification(PreTrainedModel):
    """Embedding -> one bidirectional LSTM -> final states of both directions -> ReLU layer -> logits.

    ``remap`` ``[tokenizer_size]`` takes a token id of the teacher's tokenizer to a row of the smaller embedding;
    pieces that were not kept share the row of the unknown token. Text is padded on the right.
    """

    config_class = BiLSTMConfig
    base_model_prefix = "bilstm"
    remap: Tensor

    def __init__(self, config: BiLSTMConfig) -> None:
        super().__init__(config)
        self.register_buffer("remap", torch.arange(config.tokenizer_size).clamp(max=config.vocab_size - 1))
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True, bidirectional=True)
        self.dense = nn.Linear(2 * config.hidden_size, config.dense_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.dense_size, int(config.num_labels or 2))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Keep torch's own initialisation, which suits an LSTM better than a transformer's normal(0, 0.02)."""

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Return logits ``[B, C]`` for token ids ``[B, T]`` and mask ``[B, T]``; segments are not used."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        # An empty row would make the packing fail; it reads one padding token instead.
        lengths = attention_mask.sum(dim=1).clamp(min=1)
        embedded = self.dropout(self.embedding(self.remap[input_ids]))
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (final, _) = self.lstm(packed)
        state = self.dropout(torch.cat((final[0], final[1]), dim=-1))
        logits = self.classifier(self.dropout(torch.relu(self.dense(state))))
        loss = None
        if labels is not None:
            if self.config.num_labels == 1:
                loss = nn.functional.mse_loss(logits.squeeze(-1), labels.float())
            else:
                loss = nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
