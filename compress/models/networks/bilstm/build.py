"""A bidirectional LSTM with the teacher's own embeddings, cut to the corpus and to a smaller width.

Tang et al. 2019, "Distilling Task-Specific Knowledge from BERT into Simple Neural Networks" (arXiv:1903.12136).
The paper starts from word2vec vectors of words. With ``pairs = "siamese"`` one LSTM reads both texts of a pair, each by
itself, and the classifier compares their states, as in the paper; by default a pair is read as one sequence.
"""

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.models.networks.build_small import build_small
from compress.models.networks.small import SmallModel


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    embedding_size: int = 300,
    hidden_size: int = 150,
    dense_size: int = 200,
    dropout: float = 0.1,
    minimum_count: int = 2,
    pairs: str = "joined",
) -> SmallModel:
    """Return an untrained student (:func:`compress.models.networks.build_small.build_small`)."""
    return build_small(
        "bilstm",
        teacher,
        tokenizer,
        examples,
        {"hidden_size": 1},
        embedding_size=embedding_size,
        dense_size=dense_size,
        dropout=dropout,
        minimum_count=minimum_count,
        pairs=pairs,
        hidden_size=hidden_size,
    )
