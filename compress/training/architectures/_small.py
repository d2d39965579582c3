"""Build a small student: the teacher's own embeddings, cut to the corpus and to a smaller width, and a classifier.

The vocabulary is the teacher's subword tokens that occur in the corpus, and their vectors are the teacher's, projected
to ``embedding_size`` by a singular value decomposition.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.data.tokenization import token_counts
from compress.errors import CompressError
from compress.models.modeling.small import SmallModel
from compress.tasks import of_network
from compress.training.loss_modules import input_embeddings

PAIRS = ("joined", "siamese")
COUNTED_ROWS = 1_000_000  # a vocabulary does not grow any more after this many rows, and counting must end


class Common(NamedTuple):
    """The options that every small student has.

    ``embedding_size`` is at most the teacher's, from whose vectors the student's are projected. A subword token that
    occurs fewer than ``minimum_count`` times in the text shares the vector of the unknown token. ``pairs`` is
    ``joined`` or ``siamese``; a siamese student is built for pairs only, and where it later meets a single text, it
    takes it for a pair whose second text is empty.
    """

    embedding_size: int
    dense_size: int
    dropout: float
    minimum_count: int
    pairs: str


def tokenizer_size(tokenizer: PreTrainedTokenizerFast, teacher: PreTrainedModel) -> int:
    """Return how many token ids the teacher knows; its embeddings may be more than its tokenizer has tokens."""
    return max(len(tokenizer), input_embeddings(teacher).num_embeddings)


def build_small(
    classifier: type[SmallModel],
    tagger: type[SmallModel],
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    common: Common,
    *,
    sizes: dict[str, int],
    others: dict[str, Any] | None = None,
) -> SmallModel:
    """Return an untrained student that reads the teacher's token ids.

    Args:
        classifier, tagger: its class, where the teacher labels texts and where it labels words.
        examples: the texts it will be trained on.
        sizes: further fields of its config, each at least 1; ``others`` are checked already.
    """
    _check(common, sizes)
    layout = {}
    if common.pairs == "siamese":
        examples, layout = pairs_only(examples), pair_layout(tokenizer)
    vectors = input_embeddings(teacher).weight.detach().float()
    kept = kept_pieces(tokenizer, examples, common.minimum_count)
    unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.pad_token_id
    remap = torch.full((tokenizer_size(tokenizer, teacher),), kept.index(unknown))
    remap[kept] = torch.arange(len(kept))
    projected = project(vectors, kept, min(common.embedding_size, vectors.shape[1]))
    model_class = tagger if of_network(teacher).by_word else classifier
    config = model_class.config_class(
        tokenizer_size=len(remap),
        vocab_size=len(kept),
        embedding_size=projected.shape[1],
        dense_size=common.dense_size,
        dropout=common.dropout,
        base_model_type=teacher.config.model_type.removeprefix("compress-pruned-"),
        id2label=teacher.config.id2label,
        label2id=teacher.config.label2id,
        problem_type=teacher.config.problem_type,
        pad_token_id=tokenizer.pad_token_id,
        pairs=common.pairs,
        **layout,
        **sizes,
        **(others or {}),
    )
    student = model_class(config)
    with torch.no_grad():
        student.remap.copy_(remap)
        student.embedding.weight.copy_(projected)
    return student


def _check(common: Common, sizes: Mapping[str, int]) -> None:
    counts = {name: getattr(common, name) for name in ("embedding_size", "dense_size", "minimum_count")}
    for name, size in {**counts, **sizes}.items():
        if size < 1:
            raise CompressError(f"{name} = {size} is not possible; give 1 or more")
    if not 0 <= common.dropout < 1:
        raise CompressError(f"dropout = {common.dropout} is not possible; give at least 0 and less than 1")
    if common.pairs not in PAIRS:
        raise CompressError(f"pairs = {common.pairs!r} is not known; use {' or '.join(map(repr, PAIRS))}")


def pairs_only(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples; a single text among them is a :class:`CompressError`."""
    for example in examples:
        if example.text_pair is None:
            raise CompressError(
                "pairs = 'siamese' compares two texts, and the text to learn from has single ones; use pairs = 'joined'"
            )
        yield example


def pair_layout(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the separator's id and how many special tokens the tokenizer puts before, between and after two texts.

    Raises:
        CompressError: there is no separator between the texts, so that nothing tells where the second begins.
    """
    encoded = tokenizer("a", "a")
    sequences = encoded.sequence_ids(0)
    first, second = ([at for at, sequence in enumerate(sequences) if sequence == which] for which in (0, 1))
    between = encoded["input_ids"][first[-1] + 1 : second[0]]
    if tokenizer.sep_token_id is None or between[:1] != [tokenizer.sep_token_id]:
        raise CompressError(
            "pairs = 'siamese' needs a tokenizer that puts a separator after each text, which the teacher's does not; "
            "use pairs = 'joined'"
        )
    return {
        "separator_token_id": tokenizer.sep_token_id,
        "special_tokens": [first[0], len(between), len(sequences) - 1 - second[-1]],
    }


def kept_pieces(tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example], minimum_count: int) -> list[int]:
    """Return the token ids that occur often enough, and every special token, in order."""
    counts = token_counts(tokenizer, itertools.islice(examples, COUNTED_ROWS))
    return sorted({piece for piece, n in counts.items() if n >= minimum_count}.union(tokenizer.all_special_ids))


def project(vectors: torch.Tensor, kept: list[int], width: int) -> torch.Tensor:
    """Return the kept rows ``[v, width]`` in the directions in which they vary most, scaled to unit variance.

    Truncated SVD of the centred ``[v, D]`` matrix keeps as much of the distances between tokens as ``width``
    directions can. A network learns faster from inputs near unit scale than from a transformer's small vectors.
    """
    rows = vectors[kept]
    rows = rows - rows.mean(dim=0)
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    projected: torch.Tensor = rows @ directions[:width].T
    scale = projected.std()
    return projected / scale if scale > 0 else projected
