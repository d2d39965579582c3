"""A bidirectional LSTM with the teacher's own embeddings, cut to the corpus and to a smaller width.

Tang et al. 2019, "Distilling Task-Specific Knowledge from BERT into Simple Neural Networks" (arXiv:1903.12136).
The paper starts from word2vec vectors of words; here the vocabulary is the teacher's word pieces that occur in the
corpus, and their vectors are the teacher's, projected to ``embedding_size`` by a singular value decomposition. A pair
of texts is read as one sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from compress.errors import CompressError
from compress.modeling.bilstm import BiLSTMConfig, BiLSTMForSequenceClassification

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.data import Example

COUNTED_ROWS = 1_000_000  # a vocabulary does not grow any more after this many rows, and counting must end


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
) -> BiLSTMForSequenceClassification:
    """Return an untrained student that reads the teacher's token ids.

    Args:
        examples: the texts it will be trained on; a word piece that occurs fewer than ``minimum_count`` times in
            them shares the vector of the unknown token.
        embedding_size: width of a word piece; at most the teacher's, from whose vectors it is projected.
    """
    sizes = {
        "embedding_size": embedding_size,
        "hidden_size": hidden_size,
        "dense_size": dense_size,
        "minimum_count": minimum_count,
    }
    for name, size in sizes.items():
        if size < 1:
            raise CompressError(f"{name} = {size} is not possible; give 1 or more")
    if not 0 <= dropout < 1:
        raise CompressError(f"dropout = {dropout} is not possible; give at least 0 and less than 1")
    vectors = teacher.get_input_embeddings().weight.detach().float()  # type: ignore[operator]
    kept = kept_pieces(tokenizer, examples, minimum_count)
    remap = torch.zeros(max(len(tokenizer), len(vectors)), dtype=torch.long)
    remap[kept] = torch.arange(len(kept))
    unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.pad_token_id
    absent = torch.ones_like(remap, dtype=torch.bool)
    absent[kept] = False
    remap[absent] = kept.index(unknown)
    projected = project(vectors, kept, min(embedding_size, vectors.shape[1]))
    config = BiLSTMConfig(
        tokenizer_size=len(remap),
        vocab_size=len(kept),
        embedding_size=projected.shape[1],
        hidden_size=hidden_size,
        dense_size=dense_size,
        dropout=dropout,
        base_model_type=teacher.config.model_type.removeprefix("compress-pruned-"),
        id2label=teacher.config.id2label,
        label2id=teacher.config.label2id,
        problem_type=teacher.config.problem_type,
        pad_token_id=tokenizer.pad_token_id,
    )
    student = BiLSTMForSequenceClassification(config)
    with torch.no_grad():
        student.remap.copy_(remap)
        student.embedding.weight.copy_(projected)
    return student


def kept_pieces(tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example], minimum_count: int) -> list[int]:
    """Return the token ids that occur often enough, and every special token, in order."""
    counts: Counter[int] = Counter()
    rows: list[str] = []

    def count() -> None:
        for ids in tokenizer(rows, add_special_tokens=False, verbose=False)["input_ids"]:
            counts.update(ids)
        rows.clear()

    for number, example in enumerate(examples):
        if number >= COUNTED_ROWS:
            break
        rows.append(example.text)
        if example.text_pair is not None:
            rows.append(example.text_pair)
        if len(rows) >= 4096:
            count()
    if rows:
        count()
    frequent = {piece for piece, n in counts.items() if n >= minimum_count}
    return sorted(frequent | set(tokenizer.all_special_ids))


def project(vectors: torch.Tensor, kept: list[int], width: int) -> torch.Tensor:
    """Return the kept rows ``[v, width]`` in the directions in which they vary most, scaled to unit variance.

    Truncated SVD of the centred ``[v, D]`` matrix keeps as much of the distances between pieces as ``width``
    directions can. An LSTM learns faster from inputs near unit scale than from a transformer's small vectors.
    """
    rows = vectors[kept]
    rows = rows - rows.mean(dim=0)
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    projected = rows @ directions[:width].T
    scale = projected.std()
    return projected / scale if scale > 0 else projected
