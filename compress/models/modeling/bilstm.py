"""The bidirectional LSTM classifier of Tang et al. 2019 (arXiv:1903.12136), as a transformers model.

This file imports only torch and transformers: it travels in the model directory, so that the model opens with
``trust_remote_code=True`` where ``compress`` is not installed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput


class BiLSTMConfig(PretrainedConfig):
    """Widths of a :class:`BiLSTMForSequenceClassification`.

    ``tokenizer_size`` is the teacher's vocabulary, whose token ids the model reads; ``vocab_size`` is the number of
    embeddings it keeps. ``base_model_type`` is the teacher's, so that an ONNX directory can name a stock tokenizer.
    ``pairs`` is ``"joined"`` (a pair is read as one text) or ``"siamese"``; then ``separator_token_id`` ends the first
    text, and ``special_tokens`` says how many special tokens stand before, between and after the texts of a pair.
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
        pairs: str = "joined",
        separator_token_id: int = 0,
        special_tokens: Sequence[int] = (1, 1, 1),
        **kwargs: Any,
    ) -> None:
        self.tokenizer_size = tokenizer_size
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.dense_size = dense_size
        self.dropout = dropout
        self.base_model_type = base_model_type
        self.pairs = pairs
        self.separator_token_id = separator_token_id
        self.special_tokens = list(special_tokens)
        super().__init__(**kwargs)


class BiLSTMForSequenceClassification(PreTrainedModel):
    """Embedding -> one bidirectional LSTM -> final states of both directions -> ReLU layer -> logits.

    ``remap`` ``[tokenizer_size]`` takes a token id of the teacher's tokenizer to a row of the smaller embedding;
    pieces that were not kept share the row of the unknown token. Text is padded on the right.

    Siamese, one LSTM reads both texts of a pair, each by itself and without special tokens, and the ReLU layer sees
    ``[h1; h2; h1 * h2; |h1 - h2|]`` (section 3.1 of the paper). A single text is a pair whose second text is empty.
    """

    config_class = BiLSTMConfig
    base_model_prefix = "bilstm"
    remap: Tensor

    def __init__(self, config: BiLSTMConfig) -> None:
        super().__init__(config)
        self.register_buffer("remap", torch.arange(config.tokenizer_size).clamp(max=config.vocab_size - 1))
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True, bidirectional=True)
        encoded_size = 2 * config.hidden_size * (4 if config.pairs == "siamese" else 1)
        self.dense = nn.Linear(encoded_size, config.dense_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.dense_size, int(config.num_labels or 2))
        self.post_init()  # type: ignore[no-untyped-call]

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
        lengths = attention_mask.sum(dim=1)
        if self.config.pairs == "siamese":
            one, other = self._encode(*self._split(input_ids, lengths)).chunk(2)
            state = torch.cat((one, other, one * other, (one - other).abs()), dim=-1)
        else:
            state = self._encode(input_ids, lengths)
        logits = self.classifier(self.dropout(torch.relu(self.dense(self.dropout(state)))))
        loss = None
        if labels is not None and self.config.num_labels == 1:
            loss = nn.functional.mse_loss(logits.squeeze(-1), labels.float())
        elif labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _encode(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the final states of both directions ``[B, 2H]`` of token ids ``[B, T]``."""
        _, (final, _) = self.lstm(self._packed(input_ids, lengths))
        return torch.cat((final[0], final[1]), dim=-1)

    def _packed(self, input_ids: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
        """Return what the LSTM reads. An empty row would make the packing fail; it has one padding token instead."""
        embedded = self.dropout(self.embedding(self.remap[input_ids]))
        lengths = lengths.clamp(min=1).cpu()
        return nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)

    def _split(self, input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the texts of pairs ``[2B, T]``, all first ones before all second ones, and their lengths ``[2B]``.

        The first separator ends the first text; without one the row is a first text alone.
        """
        before, between, after = self.config.special_tokens
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        lengths = lengths[:, None]
        is_separator = input_ids == self.config.separator_token_id
        ends = torch.where(is_separator, positions, lengths).amin(dim=1, keepdim=True)
        starts = torch.cat((torch.full_like(ends, before), ends + between))
        sizes = torch.cat((ends, lengths - after)) - starts
        sources = (starts + positions).clamp(max=input_ids.shape[1] - 1)
        texts = input_ids.repeat(2, 1).gather(1, sources)
        padding = getattr(self.config, "pad_token_id", None) or 0
        return torch.where(positions < sizes, texts, padding), sizes.clamp(min=0).squeeze(1)


class BiLSTMForTokenClassification(BiLSTMForSequenceClassification):
    """The same layers as a tagger: at every token the states of both directions -> ReLU layer -> logits."""

    def forward(  # type: ignore[override]  # transformers names its outputs by task
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **__: Any,
    ) -> TokenClassifierOutput:
        """Return logits ``[B, T, C]`` for token ids ``[B, T]`` and mask ``[B, T]``; segments are not used."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        output, _ = self.lstm(self._packed(input_ids, attention_mask.sum(dim=1)))
        states: Tensor
        states, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=input_ids.shape[1])
        logits = self.classifier(self.dropout(torch.relu(self.dense(self.dropout(states)))))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)
