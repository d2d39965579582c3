"""Build a small student: the teacher's own embeddings, cut to the corpus and to a smaller width, and a classifier.

The vocabulary is the teacher's subword tokens that occur in the corpus, and their vectors are the teacher's, projected
to ``embedding_size`` by a singular value decomposition.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.data.tokenization import token_counts
from compress.errors import refuse
from compress.models.components import input_embeddings
from compress.models.modeling.families import stock_type
from compress.models.networks import model_classes
from compress.models.networks.small import SmallModel
from compress.tasks import head_fields, of_network

_SINGLE = "pairs = 'siamese' compares two texts, and the text to learn from has single ones; use pairs = 'joined'"
COUNTED_ROWS = 1_000_000  # a vocabulary does not grow any more after this many rows, and counting must end
# Options of every network: the least value, or the values that there are.
LIMITS: Mapping[str, Any] = {
    "embedding_size": 1,
    "dense_size": 1,
    "minimum_count": 1,
    "pairs": ("joined", "siamese"),
}


def build_small(
    name: str,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    limits: Mapping[str, Any],
    **options: Any,
) -> SmallModel:
    """Return an untrained student that reads the teacher's token ids.

    Args:
        name: of the network.
        examples: the texts it will be trained on.
        limits: of the network's own options, as in :data:`LIMITS`.
        options: ``embedding_size`` is at most the teacher's. A subword token that occurs fewer than ``minimum_count``
            times in the text shares the vector of the unknown token. A siamese student (``pairs``) is built for pairs
            only; where it later meets a single text, it takes it for a pair whose second text is empty. All other
            options are fields of the network's config.
    """
    _check(options, {**LIMITS, **limits})
    fields = dict(options)
    minimum_count = fields.pop("minimum_count")
    if fields["pairs"] == "siamese":
        examples = pairs_only(examples)
        fields |= pair_layout(tokenizer)
    vectors = input_embeddings(teacher).weight.detach().float()
    kept = kept_pieces(tokenizer, examples, minimum_count)
    unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.pad_token_id
    remap = torch.full((tokenizer_size(tokenizer, teacher),), kept.index(unknown))
    remap[kept] = torch.arange(len(kept))
    projected = project(vectors, kept, min(fields["embedding_size"], vectors.shape[1]))
    model_class = next(one for one in model_classes(name) if one.tags == of_network(teacher).by_word)
    fields |= {
        "tokenizer_size": len(remap),
        "vocab_size": len(kept),
        "embedding_size": projected.shape[1],
        "base_model_type": stock_type(teacher.config),
        "pad_token_id": tokenizer.pad_token_id,
        **head_fields(teacher.config),
    }
    student = model_class(model_class.config_class(**fields))
    with torch.no_grad():
        student.remap.copy_(remap)
        student.embedding.weight.copy_(projected)
    return student


def _check(options: Mapping[str, Any], limits: Mapping[str, Any]) -> None:
    for name, limit in limits.items():
        value, choices = options[name], limit if isinstance(limit, tuple) else ()
        refuse(
            (
                choices and value not in choices,
                f"{name} = {value!r} is not known; use {' or '.join(map(repr, choices))}",
            ),
            (not choices and value < limit, f"{name} = {value} is not possible; give {limit} or more"),
        )
    dropout = options["dropout"]
    refuse((not 0 <= dropout < 1, f"dropout = {dropout} is not possible; give at least 0 and less than 1"))


def tokenizer_size(tokenizer: PreTrainedTokenizerFast, teacher: PreTrainedModel) -> int:
    """Return how many token ids the teacher knows; its embeddings may be more than its tokenizer has tokens."""
    return max(len(tokenizer), input_embeddings(teacher).num_embeddings)


def pairs_only(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples; a single text among them is a :class:`CompressError`."""
    for example in examples:
        refuse((example.text_pair is None, _SINGLE))
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
    refuse(
        (
            tokenizer.sep_token_id is None or between[:1] != [tokenizer.sep_token_id],
            "pairs = 'siamese' needs a tokenizer that puts a separator after each text, which the teacher's does not; "
            "use pairs = 'joined'",
        )
    )
    return {
        "separator_token_id": tokenizer.sep_token_id,
        "special_tokens": [first[0], len(between), len(sequences) - 1 - second[-1]],
    }


def kept_pieces(tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example], minimum_count: int) -> list[int]:
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
