"""A bag of hashed n-grams and two layers, as a transformers model.

Ye et al. 2022, "Sparse Distillation: Speeding Up Text Classification by Using Bigger Student Models"
(arXiv:2110.08536): the vectors of all n-grams of a text, averaged. Here n-grams are of the teacher's tokens, and those
of two and more share a table by a hash.
"""

import torch
from torch import Tensor, nn

from ..small import SmallConfig, SmallModel

POOLING = ("mean", "sum")


class NGramConfig(SmallConfig):
    """Widths of a :class:`NGramForSequenceClassification`.

    Tokens have vectors of their own; n-grams of 2 to ``longest`` tokens have ``buckets`` vectors for each n.
    ``pooling`` is ``"mean"``, the sum of all vectors divided by the number of tokens, or ``"sum"``.
    """

    model_type = "compress-ngram"

    longest: int = 3
    buckets: int = 100_000
    pooling: str = "mean"


class NGramForSequenceClassification(SmallModel):
    """Vectors of tokens and of hashed n-grams -> their mean or sum -> ReLU layer -> logits.

    The hash of an n-gram is the sum of its token ids, each times :func:`multipliers` of its place, modulo ``buckets``.
    Sums are below 2^24, so that a graph can compute them in float32 without rounding.
    """

    config_class = NGramConfig
    base_model_prefix = "ngram"
    sparse = True
    fixed_vocabulary = "n-grams are hashes of token ids, which a cut would change; train the student ngram anew"

    def add_layers(self, config: NGramConfig) -> int:
        self.ngrams = nn.Embedding((config.longest - 1) * config.buckets, config.embedding_size)
        nn.init.zeros_(self.ngrams.weight)  # an n-gram says nothing before it was trained
        return config.embedding_size

    def encode(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        config = self.config
        is_text = torch.arange(input_ids.shape[1], device=input_ids.device) < lengths[:, None]
        total = self.embedding(self.remap[input_ids])
        ids = input_ids * is_text
        hashes = ids
        for place, factor in enumerate(multipliers(config.tokenizer_size, config.longest)[1:]):
            hashes = hashes + factor * nn.functional.pad(ids, (0, place + 1))[:, place + 1 :]
            total = total + self.ngrams(hashes % config.buckets + place * config.buckets)
        summed: Tensor = (self.dropout(total) * is_text[..., None]).sum(dim=1)
        return summed / lengths.clamp(min=1)[:, None] if config.pooling == "mean" else summed


def multipliers(tokenizer_size: int, longest: int) -> list[int]:
    """Return what the ids of an n-gram are multiplied by, place by place: 1, and odd numbers far apart.

    Raises:
        ValueError: so many tokens times so many ids are too many for float32.
    """
    left = 2**24 // tokenizer_size - 1
    found = [1]
    for place in range(1, longest):
        share = left // 3 if place < longest - 1 else left
        found.append(share - (share + 1) % 2)
        left -= found[-1]
        if found[-1] < 3:
            raise ValueError(f"n-grams of {longest} tokens of {tokenizer_size:,} are too many")
    return found
