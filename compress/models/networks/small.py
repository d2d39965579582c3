"""What small students share: the teacher's token ids in a smaller vocabulary, a classifier of two layers, pairs.

This file imports only torch and transformers: it travels in the model directory beside the student's own, so that the
model opens with ``trust_remote_code=True`` where ``compress`` is not installed. Shapes: B texts, T tokens, S width of a
state, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput


class SmallConfig(PretrainedConfig):
    """Widths of a :class:`SmallModel`.

    ``tokenizer_size`` is the teacher's vocabulary, whose token ids the model reads; ``vocab_size`` is the number of
    embeddings it keeps. ``base_model_type`` is the teacher's, so that an ONNX directory can name a stock tokenizer.
    ``pairs`` is ``"joined"`` (a pair is read as one text) or ``"siamese"``; then ``separator_token_id`` ends the first
    text, and ``special_tokens`` says how many special tokens stand before, between and after the texts of a pair.
    There are no positions: ``max_position_embeddings`` is only how many tokens its training read, where that is more
    than 512.
    """

    tokenizer_size: int = 30522
    vocab_size: int = 30522
    embedding_size: int = 300
    dense_size: int = 200
    dropout: float = 0.1
    base_model_type: str = "bert"
    pairs: str = "joined"
    separator_token_id: int = 0
    special_tokens: Sequence[int] = (1, 1, 1)
    max_position_embeddings: int | None = None


class SmallModel(PreTrainedModel):
    """Embedding -> a state of the text, or of every token -> ReLU layer -> logits.

    ``remap`` ``[tokenizer_size]`` takes a token id of the teacher's tokenizer to a row of the smaller embedding;
    pieces that were not kept share the row of the unknown token. Text is padded on the right.

    Siamese, the same layers read both texts of a pair, each by itself and without special tokens, and the ReLU layer
    sees ``[h1; h2; h1 * h2; |h1 - h2|]`` (Tang et al. 2019, arXiv:1903.12136, section 3.1). A single text is a pair
    whose second text is empty.

    A class that derives from this one defines ``add_layers``, which makes the layers between embedding and state and
    returns the width S of the state, and ``encode``, which returns the states ``[B, S]`` of texts for token ids
    ``[B, T]`` and their lengths ``[B]``, which may be 0; or ``encode_tokens`` those of tokens ``[B, T, S]``. Where
    ``tags`` is true it answers every token; where ``sparse`` is true its embeddings may be trained row by row.
    ``fixed_vocabulary`` says why tokens cannot be removed from a trained model, if they cannot.
    """

    config_class: type[Any] = SmallConfig
    add_layers: Callable[[Any], int]
    encode: Callable[[Tensor, Tensor], Tensor]
    encode_tokens: Callable[[Tensor, Tensor], Tensor]
    remap: Tensor
    tags = False
    sparse = False
    fixed_vocabulary = ""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("remap", torch.arange(config.tokenizer_size).clamp(max=config.vocab_size - 1))
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        state_size = self.add_layers(config) * (4 if config.pairs == "siamese" else 1)
        self.dense = nn.Linear(state_size, config.dense_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.dense_size, int(config.num_labels or 2))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Keep torch's own initialisation, which suits these layers better than a transformer's normal(0, 0.02)."""

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput | TokenClassifierOutput:
        """Return logits ``[B, C]``, or ``[B, T, C]`` of a tagger, for token ids and mask ``[B, T]``.

        Segments are not used.
        """
        lengths = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).sum(dim=1)
        if self.tags:
            state = self.encode_tokens(input_ids, lengths)
        elif self.config.pairs == "siamese":
            one, other = self.encode(*self._split(input_ids, lengths)).chunk(2)
            state = torch.cat((one, other, one * other, (one - other).abs()), dim=-1)
        else:
            state = self.encode(input_ids, lengths)
        logits = self.classifier(self.dropout(torch.relu(self.dense(self.dropout(state)))))
        loss = None
        if labels is not None and self.config.num_labels == 1:
            loss = nn.functional.mse_loss(logits.squeeze(-1), labels.float())
        elif labels is not None and self.config.problem_type == "multi_label_classification":
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
        elif labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        return (TokenClassifierOutput if self.tags else SequenceClassifierOutput)(loss=loss, logits=logits)

    def _split(self, input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the texts of pairs ``[2B, T]``, all first ones before all second ones, and their lengths ``[2B]``.

        The first separator ends the first text; without one the row is a first text alone.
        """
        before, between, after = self.config.special_tokens
        positions, lengths = torch.arange(input_ids.shape[1], device=input_ids.device), lengths[:, None]
        is_separator = input_ids == self.config.separator_token_id
        ends = torch.where(is_separator, positions, lengths).amin(dim=1, keepdim=True)
        starts = torch.cat((torch.full_like(ends, before), ends + between))
        sizes = torch.cat((ends, lengths - after)) - starts
        sources = (starts + positions).clamp(max=input_ids.shape[1] - 1)
        texts = input_ids.repeat(2, 1).gather(1, sources)
        padding = getattr(self.config, "pad_token_id", None) or 0
        return torch.where(positions < sizes, texts, padding), sizes.clamp(min=0).squeeze(1)
