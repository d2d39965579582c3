"""Tokenization: examples to padded token ids, the same for every model and runtime."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compress.data.examples import texts_of
from compress.data.word_alignment import first_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from compress.data.examples import Example


TokenLists = dict[str, list[list[int]]]

# Position numbers of these families start after the padding id, so that many rows of the table are never used.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")
_TEXTS_AT_ONCE = 4096


def maximum_length(tokenizer: PreTrainedTokenizerFast, config: Mapping[str, Any]) -> int:
    """Return the maximum number of input tokens: the tokenizer's limit, bounded by the position embeddings."""
    return min(int(tokenizer.model_max_length), position_limit(config) or 512)


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Return the number of position embeddings that tokens can use; None for a model without them."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    if str(config.get("model_type", "")).removeprefix("compress-pruned-") in OFFSET_POSITIONS:
        positions -= int(config.get("pad_token_id", 1)) + 1
    return positions


def encode(
    tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], max_length: int, *, task: str = "classification"
) -> TokenLists:
    """Return ``input_ids`` and, where the tokenizer makes them, ``token_type_ids``: one list a row, not padded.

    For ``tagging`` the words of a row are tokenised one by one, and ``words`` says where each starts
    (:func:`compress.data.word_alignment.first_tokens`).
    """
    if task == "tagging":
        sentences = [list(example.words) for example in examples]
        split = tokenizer(
            sentences, is_split_into_words=True, truncation=True, max_length=max_length, return_attention_mask=False
        )
        tokens = {key: split[key] for key in ("input_ids", "token_type_ids") if key in split}
        return {**tokens, "words": [first_tokens(split.word_ids(row)) for row in range(len(examples))]}
    texts = [example.text for example in examples]
    pairs = [example.text_pair for example in examples] if examples and examples[0].text_pair is not None else None
    encoded = tokenizer(texts, pairs, truncation=True, max_length=max_length, return_attention_mask=False)
    return {key: encoded[key] for key in ("input_ids", "token_type_ids") if key in encoded}


def text_batches(examples: Iterable[Example]) -> Iterator[list[str]]:
    """Yield the texts of a stream, of a pair both, in lists that are quick to tokenise."""
    texts = texts_of(examples)
    while batch := list(itertools.islice(texts, _TEXTS_AT_ONCE)):
        yield batch


def token_counts(tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example]) -> Counter[int]:
    """Return how often each token id occurs in a stream of whole texts; special tokens are not put around them."""
    counts: Counter[int] = Counter()
    for texts in text_batches(examples):
        for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            counts.update(ids)
    return counts


def pad(rows: Sequence[Mapping[str, Sequence[int]]], padding_id: int) -> dict[str, np.ndarray]:
    """Return int64 arrays ``[B, T]``, padded on the right to the longest row, with their ``attention_mask``."""
    length = max(len(row["input_ids"]) for row in rows)
    arrays = {"attention_mask": np.zeros((len(rows), length), dtype=np.int64)}
    for key in rows[0]:
        arrays[key] = np.full((len(rows), length), padding_id if key == "input_ids" else 0, dtype=np.int64)
    for index, row in enumerate(rows):
        size = len(row["input_ids"])
        arrays["attention_mask"][index, :size] = 1
        for key, values in row.items():
            arrays[key][index, :size] = values
    return arrays


def tokenizer_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a fingerprint of the tokenizer's whole definition."""
    definition = tokenizer.backend_tokenizer.to_str() if hasattr(tokenizer, "backend_tokenizer") else repr(tokenizer)
    return hashlib.sha256(definition.encode()).hexdigest()
