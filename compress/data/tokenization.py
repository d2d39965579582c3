"""Tokenization: examples to padded token ids, the same for every model and runtime; word alignment for tagging.

Where a tokenizer treats words independently, as BERT's does (Devlin et al. 2019, arXiv:1810.04805; punctuation and
spaces end a word, WordPiece cuts each into subword tokens), the ids of a text are those of its words, which are kept.
The ids are those of the tokenizer itself: text beyond printable ASCII, text with a special token in it, and text that
must be truncated goes through the ``tokenizers`` library, as does all text of other tokenizers.

Without these kept words 200,000 sentences for a training take 15.0 s of CPU in place of 6.4, and ``compress predict``
of 50,000 takes 9.9 in place of 7.7 with the ngram student, 12.4 in place of 9.8 with a BiLSTM in int8 (ONNX).

In tagging a word has the logits of its first subword token (section 5.3 of the same paper). B sentences, T tokens, W
words. A word has no prediction where truncation removed it or the tokenizer has no token for its characters: metrics
count it as wrong, and neither training nor checkpoint selection uses it.
"""

import hashlib
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from compress.data.examples import Example, batched, texts_of
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.truncation import count_rows
from compress.errors import CompressError, refuse
from compress.files import faults_of

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerFast

Item = TypeVar("Item")
Text = TypeVar("Text", str, list[str])

PART_CHARACTERS = 2**22  # tokenised at a time: an encoding has a hundred bytes a character, also of what is cut
KEPT_WORDS = 65_536  # some 10 MB; later words are cut anew each time
_PRINTABLE = re.compile(r"[\t\n\r -~]*")
_ID_BYTES = 8
_PARTS = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")
# Texts of more than so many characters (words of a tagger) a token that is read are cut before they are tokenised, by
# looking at so many at first; 2,048 is more than the longest word that WordPiece reads.
_LONG, _FIRST_PART, _LEAST_PART = 64, 8, 2048
_BEYOND = 64  # tokens that are kept beyond those that are read, for the end of a text may change those before it
# Position numbers of these families start after the padding id, so that many rows of the table are never used.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")
_TEXTS_AT_ONCE = 4096
NO_ANSWER = -1  # prediction of a word without logits


class TokenRows(dict[str, list[np.ndarray]]):
    """``input_ids`` and, where the model reads them, ``token_type_ids``: int64 ``[T]`` a row, not padded.

    ``truncated`` are the numbers of the rows that were cut.
    """

    truncated: frozenset[int] = frozenset()


class TextEncoder:
    """The ids of texts and pairs of texts, special tokens included.

    Args:
        backend: the tokenizer of the ``tokenizers`` library.
        segments: whether the model reads ``token_type_ids``.
        truncation_side: where rows that are too long are cut.
        name: of the directory, for messages.
    """

    def __init__(self, backend: "Tokenizer", *, segments: bool, truncation_side: str, name: str = "") -> None:
        self._backend = backend
        self._one_at_a_time = threading.Lock()  # how the library cuts texts is a setting of the whole tokenizer
        self._name = name or "the tokenizer"
        self._segments = segments
        self._truncation_side = truncation_side
        definition = json.loads(backend.to_str())
        self._words = _Words(backend.model) if _has_independent_words(definition) else None
        if self._words is not None:
            self._lowercase = bool(definition["normalizer"]["lowercase"])
            added = [re.escape(token["content"].lower()) for token in definition["added_tokens"]]
            self._added = re.compile("|".join(added) or "(?!)")
            backend.no_truncation()
            backend.no_padding()
            with faults_of(self._name, "a tokenizer"):
                self._layouts = {False: _layout(backend.encode("a")), True: _layout(backend.encode("a", "a"))}

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> TokenRows:
        inputs = [(text,) for text in texts] if pairs is None else list(zip(texts, pairs, strict=True))
        rows = [self._look_up(row, max_length) for row in inputs]
        others = [index for index, row in enumerate(rows) if row is None]
        truncated: list[int] = []
        for part in in_parts(others, lambda index: sum(map(len, inputs[index]))):
            tokens, encodings = self.encode([inputs[i] if pairs is not None else texts[i] for i in part], max_length)
            truncated += [part[number] for number in tokens.truncated]
            for index, encoding in zip(part, encodings, strict=True):
                rows[index] = _arrays(encoding)
        return self._token_rows([row for row in rows if row is not None], truncated)

    def without_specials(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of whole texts without the special tokens around them: int64 ``[T]`` a text."""
        found = [self._ids(text) for text in texts]
        with self._one_at_a_time:
            self._backend.no_padding()
            self._backend.no_truncation()
            others = [text for text, ids in zip(texts, found, strict=True) if ids is None]
            encodings = iter(self._read(others, add_special_tokens=False))
        return [
            np.array(next(encodings).ids, dtype=np.int64) if ids is None else np.frombuffer(ids, np.int64)
            for ids in found
        ]

    def encode(
        self, inputs: Sequence[Any], max_length: int, *, words: bool = False
    ) -> tuple[TokenRows, list["Encoding"]]:
        """Return token rows and the encodings they are from.

        Args:
            inputs: texts, or pairs as tuples; with ``words`` lists of words, each of which is tokenised by itself.
            max_length: tokens a row is cut to.
        """
        with self._one_at_a_time:
            self._backend.no_padding()
            self._backend.no_truncation()
            needed = [self._needed_of_row(row, max_length, words) for row in inputs]
            self._backend.enable_truncation(max_length, direction=self._truncation_side)
            encodings = self._read(needed, words)
        cut = [number for number, one in enumerate(encodings) if len(one) >= max_length and one.overflowing]
        return self._token_rows([_arrays(encoding) for encoding in encodings], cut), encodings

    def _read(
        self, inputs: Sequence[Any], words: bool = False, *, fast: bool = True, **options: Any
    ) -> list["Encoding"]:
        """Return the encodings of texts, pairs or lists of words, by the library.

        Args:
            fast: without offsets and words.

        Raises:
            CompressError: it fails on one.
        """
        read = self._backend.encode_batch_fast if fast and not words else self._backend.encode_batch
        options["is_pretokenized"] = words
        try:
            with faults_of(self._name, "a tokenizer"):
                return read(list(inputs), **options)
        except CompressError:
            for row in inputs:
                with faults_of(self._name, f"the tokenizer of {row!r:.80}", "give another tokenizer, or leave it out"):
                    read([row], **options)
            raise

    def _needed_of_row(self, row: Any, max_length: int, words: bool) -> Any:
        """Return what has to be tokenised of a text, a pair or a list of words to know the tokens that are read."""
        longest = max(_LEAST_PART, _LONG * max_length)
        if isinstance(row, str):
            return self._needed(row, max_length, longest)
        if words:
            parts = [self._needed(word, max_length, longest, words) for word in row]
            # Words that are cut on the left would be numbered anew.
            return parts if self._truncation_side == "left" else self._needed(parts, max_length, longest, words)
        if all(len(text) <= max_length + _BEYOND for text in row):
            return row
        # The library joins all that it cuts of one text with all that it cuts of the other: few tokens are cut.
        parts = [self._needed(text, max_length, 0) for text in row]
        is_cut = [part is not text for part, text in zip(parts, row, strict=True)]
        if any(is_cut):  # the longer text gets an odd token, so that its part must be longer too
            sizes = [len(one) for one in self._read(row, add_special_tokens=False)] if all(is_cut) else is_cut
            shorter = int(sizes[0] > sizes[1])
            parts[shorter] = self._needed(row[shorter], max_length, 0, beyond=_BEYOND // 4)
            first, second = map(len, self._read(parts, add_special_tokens=False))
            if (first > second) != (sizes[0] > sizes[1]):
                return row
        return tuple(parts)

    def _needed(self, text: Text, max_length: int, longest: int, words: bool = False, beyond: int = _BEYOND) -> Text:
        """Return the part of a text longer than ``longest`` that has all tokens that are read of it, and some beyond.

        It ends at a space if there is one, so that the tokens before are those of the whole text: tokenizers look at
        words, or at neighbours. For those that look further, a longer part must have the same tokens. The longer part
        doubles until it does, so that the work grows with the text.
        """
        if len(text) <= longest:
            return text
        is_left = self._truncation_side == "left"
        kept = slice(-max_length, None) if is_left else slice(max_length)
        size = max(_LEAST_PART, _FIRST_PART * max_length)
        while True:
            part = text if size >= len(text) else self._ended(text, size // 2, size)
            encoding = self._alone(part, words)
            is_whole, tokens = part is text, len(encoding)
            if is_whole and tokens <= max_length + beyond:
                return text
            if is_whole or tokens > max_length + 4 * _BEYOND:
                if isinstance(part, str):
                    ends = [last if is_left else first for first, last in encoding.offsets]
                    places = [len(part) - end for end in reversed(ends)] if is_left else ends
                    short = self._ended(part, places[max_length + beyond // 2], places[max_length + beyond])
                else:
                    short = part[: (encoding.word_ids[max_length + beyond] or 0) + 1]
                if self._alone(short, words).ids[kept] == encoding.ids[kept]:
                    return short
                if is_whole:
                    return text
            size *= 2

    def _ended(self, text: Text, least: int, most: int) -> Text:
        """Return the end that is read of a text: ``least`` to ``most`` characters or words, at a space if it can be."""
        if self._truncation_side == "left":
            place = text.find(" ", len(text) - most, len(text) - least) if isinstance(text, str) else -1
            return text[place if place >= 0 else len(text) - most :]
        place = text.rfind(" ", least, most) if isinstance(text, str) else -1
        return text[: place if place >= 0 else most]

    def _alone(self, text: str | list[str], words: bool) -> "Encoding":
        """Return the encoding of a text without the special tokens around it."""
        row = [text] if words and isinstance(text, str) else text
        return self._read([row], words, fast=False, add_special_tokens=False)[0]

    def _token_rows(self, rows: Sequence[tuple[np.ndarray, np.ndarray]], truncated: Iterable[int]) -> TokenRows:
        segments = {"token_type_ids": [segments for _, segments in rows]} if self._segments else {}
        tokens = TokenRows({"input_ids": [ids for ids, _ in rows], **segments})
        tokens.truncated = frozenset(truncated)
        return tokens

    def _look_up(self, texts: Sequence[str], max_length: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return ids and segments of a row by its words; None where they may differ from the tokenizer's."""
        is_long = sum(map(len, texts)) > max(_LEAST_PART, _LONG * max_length)
        found = [] if is_long else [ids for ids in map(self._ids, texts) if ids is not None]
        if len(found) < len(texts):
            return None
        layout, remaining = self._layouts[len(texts) == 2], iter(found)
        parts = [next(remaining) if special is None else special for special in layout.ids]
        read = np.frombuffer(bytearray().join(parts), np.int64)
        if len(read) > max_length:
            return None
        sizes = [len(part) // _ID_BYTES for part in parts]
        return read, np.zeros_like(read) if layout.segments is None else np.repeat(layout.segments, sizes)

    def _ids(self, text: str) -> bytes | None:
        """Return the ids of a text by its words; None where they may differ from the tokenizer's."""
        if self._words is None or not _PRINTABLE.fullmatch(text) or self._added.search(lower := text.lower()):
            return None
        return b"".join([self._words[word] for word in (lower if self._lowercase else text).split()])


def in_parts(items: Sequence[Item], characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield items in lists of at most :data:`PART_CHARACTERS`, or of one item."""
    part, left = list[Item](), PART_CHARACTERS
    for item in items:
        size = characters(item)
        if part and size > left:
            yield part
            part, left = [], PART_CHARACTERS
        part.append(item)
        left -= size
    if part:
        yield part


def _arrays(encoding: "Encoding") -> tuple[np.ndarray, np.ndarray]:
    return np.array(encoding.ids, dtype=np.int64), np.array(encoding.type_ids, dtype=np.int64)


class _Words(dict[str, bytes]):
    """The ids of words that have occurred, as int64; a word ends at a space, and has its punctuation with it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, word: str) -> bytes:
        if len(parts := _PARTS.findall(word)) > 1:
            ids = b"".join([self[part] for part in parts])
        else:
            ids = np.array([token.id for token in self._model.tokenize(word)], dtype=np.int64).tobytes()
        if len(self) < KEPT_WORDS:
            self[word] = ids
        return ids


class _Layout(NamedTuple):
    """The parts of a row: the ids of a special token, or None for a text; and their segments, or None if all are 0."""

    ids: list[bytes | None]
    segments: np.ndarray | None


def _layout(encoding: "Encoding") -> _Layout:
    """Return the layout of a row from the encoding of texts of one token each."""
    tokens = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    ids = [np.array([id], dtype=np.int64).tobytes() if is_special else None for id, is_special in tokens]
    return _Layout(ids, np.array(encoding.type_ids, dtype=np.int64) if any(encoding.type_ids) else None)


def _has_independent_words(definition: Mapping[str, Any]) -> bool:
    parts = [(definition[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    # Text is lowercased before it is searched for added tokens, but not normalised otherwise.
    added_are_plain = all(re.fullmatch("[!-~]+", token["content"]) for token in definition["added_tokens"])
    return added_are_plain and parts == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]


_ENCODERS: "WeakKeyDictionary[AnyTokenizer, TextEncoder]" = WeakKeyDictionary()


def shared_encoder(tokenizer: AnyTokenizer) -> TextEncoder:
    """Return the encoder of a tokenizer, which remembers words as long as the tokenizer lives."""
    if tokenizer not in _ENCODERS:
        _ENCODERS[tokenizer] = TextEncoder(
            tokenizer.backend_tokenizer,
            segments="token_type_ids" in tokenizer.model_input_names,
            truncation_side=tokenizer.truncation_side,
            name=str(tokenizer.name_or_path),
        )
    return _ENCODERS[tokenizer]


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
    by_word: bool = False,
    counted: bool = True,
) -> TokenRows:
    """Return ``input_ids`` and, where the tokenizer makes them, ``token_type_ids``: int64 ``[T]`` a row, not padded.

    Where the tokenizer leaves nothing of a row, it has the unknown token.

    Args:
        by_word: tokenise the words of a row one by one; ``words`` then says where each starts (:func:`first_tokens`).
        counted: whether rows that are cut count for :mod:`compress.data.truncation`.

    Raises:
        CompressError: some rows are texts and some are pairs, or words of pairs are to be read.
    """
    check_one_kind(examples, by_word=by_word)
    tokens = _encode(tokenizer, examples, max_length, by_word)
    if counted:
        count_rows(max_length, examples, tokens.truncated)
    if not all(map(len, tokens["input_ids"])):
        instead = {"input_ids": int(tokenizer.unk_token_id or 0)}
        for key, rows in tokens.items():
            empty = np.array([instead.get(key, 0)], dtype=np.int64)
            tokens[key] = [row if len(row) else empty for row in rows]
    return tokens


def check_one_kind(examples: Sequence[Example], *, by_word: bool = False) -> None:
    """Refuse texts beside pairs of texts, whose second texts nothing would read, and pairs for a tagger."""
    kinds = {example.text_pair is not None for example in examples}
    refuse(
        (
            by_word and True in kinds,
            "a tagger reads one text, words with spaces between, and these rows are pairs of texts",
        ),
        (len(kinds) > 1, "some of these rows are texts and some are pairs of texts; give rows of one kind"),
    )


def _encode(tokenizer: AnyTokenizer, examples: Sequence[Example], max_length: int, by_word: bool) -> TokenRows:
    encoder = shared_encoder(tokenizer)
    if not by_word:
        has_pairs = bool(examples) and examples[0].text_pair is not None
        pairs = [example.text_pair or "" for example in examples] if has_pairs else None
        return encoder([example.text for example in examples], pairs, max_length)
    found, cut = TokenRows(), set[int]()
    for part in in_parts(examples, lambda example: len(example.text)):
        tokens, encodings = encoder.encode([list(example.words) for example in part], max_length, words=True)
        tokens["words"] = [np.array(first_tokens(one.word_ids), dtype=np.int64) for one in encodings]
        cut |= {len(found.get("words", ())) + number for number in tokens.truncated}
        for key, rows in tokens.items():
            found.setdefault(key, []).extend(rows)
    found.truncated = frozenset(cut)
    return found


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
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


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
    return [len(example.words) for example in examples]


def by_sentence(values: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Cut ``[W, ...]`` into one array for each sentence."""
    return np.split(values, np.cumsum(counts)[:-1])
