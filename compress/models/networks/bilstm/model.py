"""The bidirectional LSTM classifier of Tang et al. 2019 (arXiv:1903.12136), as a transformers model."""

import torch
from torch import Tensor, nn

from ..small import SmallConfig, SmallModel


class BiLSTMConfig(SmallConfig):
    """Widths of a :class:`BiLSTMForSequenceClassification`; ``hidden_size`` is that of each direction."""

    model_type = "compress-bilstm"

    hidden_size: int = 150


class BiLSTMForSequenceClassification(SmallModel):
    """Embedding -> one bidirectional LSTM -> final states of both directions -> ReLU layer -> logits."""

    config_class = BiLSTMConfig
    base_model_prefix = "bilstm"

    def add_layers(self, config: BiLSTMConfig) -> int:
        self.lstm = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True, bidirectional=True)
        return 2 * config.hidden_size

    def encode(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        _, (final, _) = self.lstm(self._packed(input_ids, lengths))
        return torch.cat((final[0], final[1]), dim=-1)

    def encode_tokens(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        output, _ = self.lstm(self._packed(input_ids, lengths))
        states: Tensor
        states, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=input_ids.shape[1])
        return states

    def _packed(self, input_ids: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
        """Return what the LSTM reads. An empty row would make the packing fail; it has one padding token instead."""
        lengths = lengths.clamp(min=1).cpu()
        embedded = self.dropout(self.embedding(self.remap[input_ids]))
        return nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)


class BiLSTMForTokenClassification(BiLSTMForSequenceClassification):
    """The same layers as a tagger: at every token the states of both directions -> ReLU layer -> logits."""

    tags = True
