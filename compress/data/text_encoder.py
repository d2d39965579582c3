"""Fast tokenization with a per-word cache, and truncation of long texts before they are tokenised.

Where a tokenizer treats words independently, as BERT's does (Devlin et al. 2019, arXiv:1810.04805; punctuation and
spaces end a word, WordPiece cuts each into subword tokens), the ids of a text are those of its words, which are kept.
The ids are those of the tokenizer itself: text beyond printable ASCII, text with a special token in it, and text that
must be truncated goes through the ``tokenizers`` library, as does all text of other tokenizers.

Without the cache ``compress predict`` of 50,000 sentences takes 9.9 s of CPU in place of 7.7 with the ngram student and
12.4 in place of 9.8 with a BiLSTM in int8 (ONNX); 24.2 in place of 22.5 with the cnn in torch.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from compress.data.stored_tokenizer import AnyTokenizer
from compress.errors import CompressError
from compress.files import faults_of

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

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
        """Return the tokens of texts, or of pairs."""
        inputs: list[tuple[str, ...]] = list(
            zip(texts, strict=True) if pairs is None else zip(texts, pairs, strict=True)
        )
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
        found = [self._ids(text) if self._words is not None else None for text in texts]
        others = [index for index, ids in enumerate(found) if ids is None]
        with self._one_at_a_time:
            self._backend.no_padding()
            self._backend.no_truncation()
            encodings = self._read([texts[index] for index in others], add_special_tokens=False)
        rows = dict(zip(others, encodings, strict=True))
        return [
            np.array(rows[index].ids, dtype=np.int64) if ids is None else np.frombuffer(ids, np.int64)
            for index, ids in enumerate(found)
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
        if self._words is None or sum(map(len, texts)) > max(_LEAST_PART, _LONG * max_length):
            return None
        layout = self._layouts[len(texts) == 2]
        found = [ids for ids in map(self._ids, texts) if ids is not None]
        if len(found) < len(texts):
            return None
        remaining = iter(found)
        parts = [next(remaining) if special is None else special for special in layout.ids]
        read = np.frombuffer(bytearray().join(parts), np.int64)
        if len(read) > max_length:
            return None
        sizes = [len(part) // _ID_BYTES for part in parts]
        return read, np.zeros_like(read) if layout.segments is None else np.repeat(layout.segments, sizes)

    def _ids(self, text: str) -> bytes | None:
        """Return the ids of a text by its words; None where they may differ from the tokenizer's."""
        assert self._words is not None
        lower = text.lower()
        if not _PRINTABLE.fullmatch(text) or self._added.search(lower):
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
