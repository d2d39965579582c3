"""Texts to token ids without what a model does not read: offsets, padding objects, lists of strings.

Where a tokenizer treats words independently, as BERT's does (Devlin et al. 2019, arXiv:1810.04805; punctuation and
spaces end a word, WordPiece cuts each into subword tokens), the ids of a text are those of its words, and most words of
a text have occurred before. They are kept, so that such a text costs a lookup a word. The ids are those of the
tokenizer itself: text beyond printable ASCII, text with a special token in it, and text that must be truncated goes
through the ``tokenizers`` library, as does all text of other tokenizers.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from compress.data.stored_tokenizer import AnyTokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

TokenRows = dict[str, list[np.ndarray]]
Item = TypeVar("Item")

PART_CHARACTERS = 2**22  # tokenised at a time: an encoding has a hundred bytes a character, also of what is cut
KEPT_WORDS = 65_536  # some 10 MB; later words are cut anew each time
_PRINTABLE = re.compile(r"[\t\n\r -~]*")
_ID_BYTES = 8
_PARTS = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")


class TextEncoder:
    """The ids of texts and pairs of texts, special tokens included.

    Args:
        backend: the tokenizer of the ``tokenizers`` library.
        segments: whether the model reads ``token_type_ids``.
        truncation_side: where rows that are too long are cut.
    """

    def __init__(self, backend: "Tokenizer", *, segments: bool, truncation_side: str) -> None:
        self._backend = backend
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
            self._layouts = {False: _layout(backend.encode("a")), True: _layout(backend.encode("a", "a"))}

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> TokenRows:
        """Return ``input_ids`` and, where the model reads them, ``token_type_ids``: int64 ``[T]`` a row, not padded."""
        inputs: list[tuple[str, ...]] = list(
            zip(texts, strict=True) if pairs is None else zip(texts, pairs, strict=True)
        )
        rows = [self._look_up(row, max_length) for row in inputs]
        others = [index for index, row in enumerate(rows) if row is None]
        for part in in_parts(others, lambda index: sum(map(len, inputs[index]))):
            _, encodings = self.encode([inputs[i] if pairs is not None else texts[i] for i in part], max_length)
            for index, encoding in zip(part, encodings, strict=True):
                rows[index] = _arrays(encoding)
        return self._token_rows([row for row in rows if row is not None])

    def without_specials(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of whole texts without the special tokens around them: int64 ``[T]`` a text."""
        found = [self._ids(text) if self._words is not None else None for text in texts]
        others = [index for index, ids in enumerate(found) if ids is None]
        self._backend.no_padding()
        self._backend.no_truncation()
        encodings = self._backend.encode_batch_fast([texts[index] for index in others], add_special_tokens=False)
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
        self._backend.no_padding()
        self._backend.enable_truncation(max_length, direction=self._truncation_side)
        read = self._backend.encode_batch if words else self._backend.encode_batch_fast  # fast: words may be lost
        encodings = read(list(inputs), is_pretokenized=words)
        return self._token_rows([_arrays(encoding) for encoding in encodings]), encodings

    def _token_rows(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> TokenRows:
        segments = {"token_type_ids": [segments for _, segments in rows]} if self._segments else {}
        return {"input_ids": [ids for ids, _ in rows], **segments}

    def _look_up(self, texts: Sequence[str], max_length: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return ids and segments of a row by its words; None where they may differ from the tokenizer's."""
        if self._words is None:
            return None
        layout = self._layouts[len(texts) == 2]
        ids: list[bytes] = []
        sizes: list[int] = []
        remaining = iter(texts)
        for special in layout.ids:
            if special is not None:
                part = special
            else:
                found = self._ids(next(remaining))
                if found is None:
                    return None
                part = found
            ids.append(part)
            sizes.append(len(part) // _ID_BYTES)
        if sum(sizes) > max_length:
            return None
        read = np.frombuffer(bytearray().join(ids), np.int64)
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
        parts = _PARTS.findall(word)
        if len(parts) > 1:
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
        )
    return _ENCODERS[tokenizer]
