"""Tokenization: examples to padded token ids, the same for every model and runtime; word alignment for tagging.

In tagging a word has the logits of its first subword token (Devlin et al. 2019, arXiv:1810.04805, section 5.3). B
sentences, T tokens, W words. A word has no prediction where truncation removed it or the tokenizer has no token for its
characters: metrics count it as wrong, and neither training nor checkpoint selection uses it.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compress.data.examples import Example, batched, texts_of
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.text_encoder import TokenRows, in_parts, shared_encoder
from compress.data.truncation import count_rows
from compress.errors import CompressError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Position numbers of these families start after the padding id, so that many rows of the table are never used.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")
_TEXTS_AT_ONCE = 4096


def maximum_length(tokenizer: AnyTokenizer, config: Mapping[str, Any]) -> int:
    """Return the maximum number of input tokens: the tokenizer's limit, bounded by the position embeddings."""
    return min(int(tokenizer.model_max_length), position_limit(config) or 512)


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Return the number of position embeddings that tokens can use; None for a model without them."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        return None
    if str(config.get("model_type", "")).removeprefix("compress-pruned-") in OFFSET_POSITIONS:
        padding = config.get("pad_token_id")
        positions -= 2 if padding is None else padding + 1
    return positions


def encode(
    tokenizer: AnyTokenizer,
    examples: Sequence[Example],
    max_length: int,
    *,
    task: str = "classification",
    counted: bool = True,
) -> TokenRows:
    """Return ``input_ids`` and, where the tokenizer makes them, ``token_type_ids``: int64 ``[T]`` a row, not padded.

    For ``tagging`` the words of a row are tokenised one by one, and ``words`` says where each starts
    (:func:`compress.data.tokenization.first_tokens`). Where the tokenizer leaves nothing of a row, it has the unknown
    token.

    Args:
        counted: whether rows that are cut count for :mod:`compress.data.truncation`.

    Raises:
        CompressError: some rows are texts and some are pairs, or a tagger is to read pairs.
    """
    check_one_kind(examples, task)
    tokens = _encode(tokenizer, examples, max_length, task)
    if counted:
        count_rows(max_length, examples, tokens.truncated)
    if not all(map(len, tokens["input_ids"])):
        instead = {"input_ids": int(tokenizer.unk_token_id or 0)}
        for key, rows in tokens.items():
            empty = np.array([instead.get(key, 0)], dtype=np.int64)
            tokens[key] = [row if len(row) else empty for row in rows]
    return tokens


def check_one_kind(examples: Sequence[Example], task: str = "classification") -> None:
    """Refuse texts beside pairs of texts, whose second texts nothing would read, and pairs for a tagger."""
    kinds = {example.text_pair is not None for example in examples}
    if task == "tagging" and True in kinds:
        raise CompressError("a tagger reads one text, words with spaces between, and these rows are pairs of texts")
    if len(kinds) > 1:
        raise CompressError("some of these rows are texts and some are pairs of texts; give rows of one kind")


def _encode(tokenizer: AnyTokenizer, examples: Sequence[Example], max_length: int, task: str) -> TokenRows:
    if task == "tagging":
        found, cut = TokenRows(), set[int]()
        for part in in_parts(examples, lambda example: len(example.text)):
            tokens, encodings = shared_encoder(tokenizer).encode([list(e.words) for e in part], max_length, words=True)
            tokens["words"] = [np.array(first_tokens(one.word_ids), dtype=np.int64) for one in encodings]
            before = len(found.get("words", ()))
            cut |= {before + number for number in tokens.truncated}
            for key, rows in tokens.items():
                found.setdefault(key, []).extend(rows)
        found.truncated = frozenset(cut)
        return found
    texts = [example.text for example in examples]
    has_pairs = bool(examples) and examples[0].text_pair is not None
    return shared_encoder(tokenizer)(
        texts, [example.text_pair or "" for example in examples] if has_pairs else None, max_length
    )


def text_batches(examples: Iterable[Example]) -> Iterator[list[str]]:
    """Return the texts of a stream, of a pair both, in lists that are quick to tokenise."""
    return batched(texts_of(examples), _TEXTS_AT_ONCE)


def token_counts(tokenizer: "PreTrainedTokenizerFast", examples: Iterable[Example]) -> Counter[int]:
    """Return how often each token id occurs in a stream of whole texts; special tokens are not put around them."""
    counts: Counter[int] = Counter()
    for texts in text_batches(examples):
        for part in in_parts(texts, len):
            ids = np.concatenate(shared_encoder(tokenizer).without_specials(part))
            counts.update(dict(zip(*map(np.ndarray.tolist, np.unique(ids, return_counts=True)), strict=True)))
    return counts


def pad(rows: Sequence[Mapping[str, Sequence[int] | np.ndarray]], padding_id: int) -> dict[str, np.ndarray]:
    """Return int64 arrays ``[B, T]``, padded on the right to the longest row, with their ``attention_mask``."""
    if len(rows) == 1:  # a request: what follows would take longer than a small model
        alone = {key: np.asarray(values, dtype=np.int64)[None] for key, values in rows[0].items()}
        return {"attention_mask": np.ones(alone["input_ids"].shape, dtype=np.int64), **alone}
    sizes = np.array([len(row["input_ids"]) for row in rows])
    is_text = np.arange(sizes.max()) < sizes[:, None]
    arrays = {"attention_mask": is_text.astype(np.int64)}
    for key in rows[0]:
        arrays[key] = np.full(is_text.shape, padding_id if key == "input_ids" else 0, dtype=np.int64)
        arrays[key][is_text] = np.concatenate([row[key] for row in rows])
    return arrays


def tokenizer_sha256(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Return a fingerprint of the tokenizer's whole definition."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


NO_ANSWER = -1  # prediction of a word without logits


def first_tokens(words: Sequence[int | None]) -> list[int]:
    """Return for every token the number of the word that starts there, counted from 1; 0 where none does.

    Args:
        words: for every token the word that it is of, counted from 0; None for special tokens.
    """
    neighbours = itertools.pairwise([None, *words])
    return [word + 1 if word is not None and word != before else 0 for before, word in neighbours]


def at_words(logits: np.ndarray, starts: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the logits of every word, ``[W, C]``; NaN for a word that has none.

    Args:
        logits: ``[B, T, C]``.
        starts: ``[B, T]``, as :func:`first_tokens` gives it.
        counts: words of each sentence.

    Raises:
        CompressError: logits that are not finite.
    """
    found = np.full((sum(counts), logits.shape[-1]), np.nan, dtype=np.float32)
    before = np.cumsum([0, *counts[:-1]])
    row, token = np.nonzero(starts)
    answers = logits[row, token]
    if not np.isfinite(answers).all():
        raise CompressError("the model gave logits that are not finite numbers; its weights are damaged")
    found[before[row] + starts[row, token] - 1] = answers
    return found


def word_counts(examples: Iterable[Example]) -> list[int]:
    """Return the number of words of each sentence."""
    return [len(example.words) for example in examples]


def by_sentence(values: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Cut ``[W, ...]`` into one array for each sentence."""
    return np.split(values, np.cumsum(counts)[:-1])


def one_column(gold: Sequence[Any]) -> np.ndarray:
    """Return gold labels as metrics read them: ``[N]``, or for tagging ``[W]``, those of all sentences in order."""
    nested = bool(len(gold)) and isinstance(gold[0], list)
    return np.array([tag for tags in gold for tag in tags] if nested else gold)
