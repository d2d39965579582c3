"""Tokenization: examples to padded token ids, the same for every model and runtime; word alignment for tagging.

Where a tokenizer treats words independently, as BERT's does (Devlin et al. 2019, arXiv:1810.04805; punctuation and
spaces end a word, WordPiece cuts each into subword tokens), the ids of a text are those of its words, which are kept.
Text beyond printable ASCII and text with a special token in it goes through the ``tokenizers`` library, as does all
text of other tokenizers. Rows are cut, and get their special tokens, as the library does it.

Without these kept words 200,000 sentences for a training take 15.0 s of CPU in place of 6.4, and ``compress predict``
of 50,000 takes 9.9 in place of 7.7 with the ngram student, 12.4 in place of 9.8 with a BiLSTM in int8 (ONNX).

In tagging a word has the logits of its first subword token (section 5.3 of the same paper). B sentences, T tokens, W
words. A word has no prediction where truncation removed it or the tokenizer has no token for its characters: metrics
count it as wrong, and neither training nor checkpoint selection uses it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from compress.arrays import np
from compress.data.examples import PART_CHARACTERS, Example, batched, texts_of
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.truncation import count_rows, counts_tokens
from compress.errors import CompressError, refuse
from compress.files import faults_of

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerFast

Item = TypeVar("Item")
Text = TypeVar("Text", str, list[str])
Items = TypeVar("Items", bytes, str, list[int], list[str])

WHOLE = 2**40  # tokens that nothing is cut to
KEPT_WORDS = 65_536  # some 10 MB; later words are cut anew each time
_LONGEST_KEPT = 100  # characters of such a word
_PRINTABLE = re.compile(r"[\t\n\r -~]*")
_ID_BYTES = 8
_PARTS = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")
# Texts of more than so many characters (words of a tagger) a token that is read are cut before they are tokenised, by
# looking at so many at first; 2,048 is more than the longest word that WordPiece reads.
_LONG, _FIRST_PART, _LEAST_PART = 64, 8, 2048
# Position numbers of these families start after the padding id, so that many rows of the table are never used.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")
_TEXTS_AT_ONCE = 4096
NO_ANSWER = -1  # prediction of a word without logits


class TokenRows(dict[str, list[Any]]):
    """``input_ids`` and, where the model reads them, ``token_type_ids``: int64 ``[T]`` a row, not padded.

    ``unread`` has, by the numbers of the rows that were cut, how many tokens are left out: at least so many of a text
    of which only a part was tokenised.
    """

    unread: Mapping[int, int] = {}


class _Part(NamedTuple):
    """A part of a row: a text by its number, or special tokens; and the segment of its tokens."""

    text: int | None
    special: bytes
    segment: int


class TextEncoder:
    """The ids of texts and pairs of texts, special tokens included.

    Args:
        backend: the tokenizer of the ``tokenizers`` library.
        segments: whether the model reads ``token_type_ids``.
        truncation_side: where rows that are too long are cut.
        name: of the directory, for messages.

    ``layouts`` are the parts of a row of one text, and of a pair.
    """

    def __init__(self, backend: Tokenizer, *, segments: bool, truncation_side: str, name: str = "") -> None:
        self._backend = backend
        self._one_at_a_time = threading.Lock()  # padding and cutting are settings of the whole tokenizer
        self._name = name or "the tokenizer"
        self._segments = segments
        self._is_left = truncation_side == "left"
        definition = json.loads(backend.to_str())
        kinds = [(definition[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
        # Text is lowercased before it is searched for added tokens, but not normalised otherwise.
        added_are_plain = all(re.fullmatch("[!-~]+", token["content"]) for token in definition["added_tokens"])
        is_independent = added_are_plain and kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]
        self._words = _Words(backend.model) if is_independent else None
        if self._words is not None:
            self._lowercase = bool(definition["normalizer"]["lowercase"])
            added = [re.escape(token["content"].lower()) for token in definition["added_tokens"]]
            self._added = re.compile("|".join(added) or "(?!)")
        known = (
            "a" if self._read(["a"])[0].ids else next((t for t in backend.get_vocab() if self._read([t])[0].ids), "")
        )
        self.layouts = [_layout(self._read([row], add_special_tokens=True)[0]) for row in (known, (known, known))]

    def __call__(
        self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int, *, whole: bool = False
    ) -> TokenRows:
        columns = [texts] if pairs is None else [texts, pairs]
        if whole:
            return self._rows([*zip(*map(self.ids, columns), strict=True)], max_length)
        needed = [[self._needed(text, max_length + 1) for text in column] for column in columns]
        rows = list(zip(*map(self.ids, needed), strict=True))
        for number, pair in enumerate(zip(texts, pairs or (), strict=False)):
            is_part = any(column[number] is not text for column, text in zip(needed, pair, strict=True))
            if is_part and 2 * min(map(len, rows[number])) > _ID_BYTES * (max_length - 8):
                rows[number] = tuple(self.ids(pair))  # where both are cut, the one of more tokens keeps an odd one
        return self._rows(rows, max_length)

    def ids(self, texts: Sequence[str]) -> list[bytes]:
        """Return the ids of whole texts without special tokens, int64 each."""
        if len(texts) == 1 and len(texts[0]) > PART_CHARACTERS:
            return [b"".join([self.ids([piece])[0] for piece in _pieces(texts[0])])]
        if any(len(text) > PART_CHARACTERS for text in texts):
            return [self.ids([text])[0] for text in texts]
        found = list(map(self._look_up, texts))
        others = [number for number, ids in enumerate(found) if ids is None]
        for part in in_parts(others, lambda number: len(texts[number])) if others else ():
            for number, encoding in zip(part, self._read([texts[number] for number in part]), strict=True):
                found[number] = _int64(encoding.ids)
        return [ids or b"" for ids in found]

    def of_words(self, rows: Sequence[Sequence[str]], max_length: int, *, whole: bool = False) -> TokenRows:
        """Return the tokens of lists of words, each tokenised by itself; ``words`` says where each starts."""
        most, ids, words = max_length + 1, list[tuple[bytes]](), list[list[int]]()
        for part in in_parts(rows, lambda row: sum(map(len, row))):
            short = [[self._needed(word, most) for word in row] for row in part]
            needed = short if whole else [self._needed(row, most) for row in short]
            for row, some, (own, numbers) in zip(part, needed, self._read_words(needed), strict=True):
                before = len(row) - len(some) if self._is_left else 0
                ids.append((own,))
                words.append([before + number for number in numbers])
        tokens, ends = self._rows(ids, max_length), self.ends(pairs=False)
        sizes = [len(row) - sum(ends) for row in tokens["input_ids"]]
        starts = [first_tokens(self._end(row, size)) for row, size in zip(words, sizes, strict=True)]
        tokens["words"] = [np.pad(np.array(row, dtype=np.int64), ends) for row in starts]
        return tokens

    def ends(self, *, pairs: bool) -> tuple[int, int]:
        """Return how many special tokens stand before and after texts, or pairs of texts."""
        layout = self.layouts[pairs]
        return len(layout[0].special) // _ID_BYTES, len(layout[-1].special) // _ID_BYTES

    def _rows(self, rows: Sequence[Sequence[bytes]], max_length: int) -> TokenRows:
        """Return rows of the ids of one text or of two with special tokens."""
        tokens, unread = (
            TokenRows({"input_ids": [], **({"token_type_ids": []} if self._segments else {})}),
            dict[int, int](),
        )
        for number, texts in enumerate(rows):
            layout = self.layouts[len(texts) - 1]
            room = max(_ID_BYTES * max_length - sum([len(part.special) for part in layout]), 0)
            if (size := sum(map(len, texts))) > room:
                texts = self._cut(texts, room // _ID_BYTES)
                unread[number] = (size - room) // _ID_BYTES
            parts = [part.special if part.text is None else texts[part.text] for part in layout]
            ids = np.frombuffer(bytearray().join(parts), np.int64)
            tokens["input_ids"].append(ids)
            if self._segments:
                segments, sizes = [part.segment for part in layout], [len(part) // _ID_BYTES for part in parts]
                repeated = np.repeat(np.array(segments), sizes) if any(segments) else np.zeros_like(ids)
                tokens["token_type_ids"].append(repeated)
        tokens.unread = unread
        return tokens

    def _cut(self, texts: Sequence[bytes], room: int) -> list[bytes]:
        """Cut the ids of texts as the library does: those of the longer one, and then of both to a half."""
        sizes = [len(text) // _ID_BYTES for text in texts]
        if len(sizes) == 1:
            return [self._end(texts[0], _ID_BYTES * room)]
        shorter = min(*sizes, room // 2)
        kept = (room - shorter, shorter) if sizes[0] > sizes[1] else (shorter, room - shorter)
        return [self._end(text, _ID_BYTES * size) for text, size in zip(texts, kept, strict=True)]

    def _end(self, items: Items, size: int) -> Items:
        """Return the first ``size`` items, or the last where texts are cut on the left."""
        return items[max(len(items) - size, 0) :] if self._is_left else items[:size]

    def _read(self, inputs: Sequence[Any], *, words: bool = False, add_special_tokens: bool = False) -> list[Encoding]:
        """Return the encodings of texts, pairs or lists of words, by the library.

        Raises:
            CompressError: it fails on one.
        """
        fast = not words and not add_special_tokens  # it knows no words, and no segments without a post-processor
        read = self._backend.encode_batch_fast if fast else self._backend.encode_batch
        options = {"is_pretokenized": words, "add_special_tokens": add_special_tokens}
        with self._one_at_a_time:
            self._backend.no_padding()
            self._backend.no_truncation()
            try:
                with faults_of(self._name, "a tokenizer"):
                    return read(list(inputs), **options)
            except CompressError:
                for row in inputs:
                    with faults_of(
                        self._name, f"the tokenizer of {row!r:.80}", "give another tokenizer, or leave it out"
                    ):
                        read([row], **options)
                raise

    def _read_words(self, rows: Sequence[list[str]]) -> Iterator[tuple[bytes, list[int]]]:
        """Yield the ids of each list of words and the number of the word of each; long lists are read in parts."""
        parts = [[*in_parts(row, len)] or [[]] for row in rows]
        single = all(len(row) == 1 for row in parts)
        one_by_one = (self._read([some], words=True)[0] for row in parts for some in row)
        encodings = iter(self._read(rows, words=True)) if single else one_by_one
        for row in parts:
            ids, numbers, before = list[bytes](), list[int](), 0
            for some, encoding in zip(row, encodings, strict=False):
                ids.append(_int64(encoding.ids))
                numbers += [before + word for word in encoding.word_ids if word is not None]
                before += len(some)
            yield b"".join(ids), numbers

    def _needed(self, text: Text, most: int) -> Text:
        """Return the part of a long text, or of many words, that has the tokens that are read.

        It ends at a space if there is one, so that the tokens before are those of the whole text: tokenizers look at
        words, or at neighbours. For those that look further, a part of twice the length must have the same tokens.
        """
        if len(text) <= max(_LEAST_PART, _LONG * most):
            return text
        size, part, before = max(_LEAST_PART, _FIRST_PART * most), text, b""
        while size < len(text):
            longer = self._ended(text, size)
            # One word without a space is read to its end: looked up, in a tenth of the library's time.
            ids = self.ids([longer])[0] if isinstance(longer, str) else _int64(self._read([longer], words=True)[0].ids)
            ids = self._end(ids, _ID_BYTES * most)
            if len(ids) == _ID_BYTES * most and ids == before:
                return part
            part, before, size = longer, ids, 2 * size
        return text

    def _ended(self, text: Text, size: int) -> Text:
        """Return the end that is read of a text, of at most so many characters or words, at a space if there is one."""
        if isinstance(text, str):
            if self._is_left:
                place = text.find(" ", len(text) - size, len(text) - size // 2)
                return text[place if place >= 0 else len(text) - size :]
            place = text.rfind(" ", size // 2, size)
            return text[: place if place >= 0 else size]
        return self._end(text, size)

    def _look_up(self, text: str) -> bytes | None:
        """Return the ids of a text by its words; None where they may differ from the tokenizer's."""
        if self._words is None or not _PRINTABLE.fullmatch(text) or self._added.search(lower := text.lower()):
            return None
        return b"".join([self._words[word] for word in (lower if self._lowercase else text).split()])


_LONGEST_WORD = 100_000  # characters in which white space is looked for


def _pieces(text: str) -> Iterator[str]:
    """Yield a long text in pieces that have its tokens: they end before white space, where there is some."""
    begin = 0
    while len(text) - begin > PART_CHARACTERS:
        most = begin + PART_CHARACTERS
        end = text.rfind(" ", begin + 1, most)
        if end < 0:  # lines, or words between tabs
            places = range(most - 1, max(begin, most - _LONGEST_WORD), -1)
            end = next((at for at in places if text[at].isspace() and not text[at - 1].isspace()), most)
        yield text[begin:end]
        begin = end
    yield text[begin:]


def in_parts(items: Sequence[Item], characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield items in lists of about :data:`PART_CHARACTERS`, or of one longer item and what is before it."""
    ends = itertools.accumulate(map(characters, items))
    for _, part in itertools.groupby(zip(items, ends, strict=True), lambda pair: pair[1] // PART_CHARACTERS):
        yield [item for item, _ in part]


def _int64(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype=np.int64).tobytes()


class _Words(dict[str, bytes]):
    """The ids of words that have occurred, as int64; a word ends at a space, and has its punctuation with it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, word: str) -> bytes:
        if len(parts := _PARTS.findall(word)) > 1:
            ids = b"".join([self[part] for part in parts])
        else:
            ids = _int64([token.id for token in self._model.tokenize(word)])
        if len(self) < KEPT_WORDS and len(word) <= _LONGEST_KEPT:
            self[word] = ids
        return ids


def _layout(encoding: Encoding) -> list[_Part]:
    """Return the parts of a row from the encoding of texts that have tokens."""
    tokens = zip(encoding.sequence_ids, encoding.type_ids, encoding.ids, strict=True)
    parts = [
        _Part(text, _int64([id for *_, id in some] if text is None else []), kind)
        for (text, kind), some in itertools.groupby(tokens, lambda token: token[:2])
    ]
    return parts or [_Part(0, b"", 0)]


_ENCODERS: WeakKeyDictionary[AnyTokenizer, TextEncoder] = WeakKeyDictionary()


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


def check_length(asked: int | None, tokenizer: AnyTokenizer, config: Mapping[str, Any], name: object) -> None:
    """Refuse a ``--max-length`` above what a model reads, which is called ``name``."""
    longest = maximum_length(tokenizer, config)
    advice = f"give at most {longest}; --windows reads longer texts"
    refuse(
        ((asked or 0) > longest, f"--max-length {asked} is more than the {longest} tokens that {name} reads; {advice}")
    )


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
    encoder, texts = shared_encoder(tokenizer), [example.text for example in examples]
    if by_word:
        tokens = encoder.of_words([example.words for example in examples], max_length, whole=counts_tokens())
    else:
        pairs = [example.text_pair for example in examples if example.text_pair is not None]
        tokens = encoder(texts, pairs or None, max_length, whole=counts_tokens())
    if counted:
        count_rows(max_length, examples, tokens.unread)
    if not all(map(len, tokens["input_ids"])):
        for key, rows in tokens.items():
            instead = int(tokenizer.unk_token_id or 0) if key == "input_ids" else 0
            tokens[key] = [row if len(row) else np.array([instead], dtype=np.int64) for row in rows]
    return tokens


def check_one_kind(examples: Sequence[Example], *, by_word: bool = False) -> None:
    """Refuse texts beside pairs of texts, whose second texts nothing would read, and pairs for a tagger."""
    kinds = {example.text_pair is not None for example in examples}
    refuse(
        (
            by_word and True in kinds,
            "a tagger reads one text, and these rows are pairs of texts; give the text alone",
        ),
        (len(kinds) > 1, "some of these rows are texts and some are pairs of texts; give rows of one kind"),
    )


def text_batches(examples: Iterable[Example]) -> Iterator[list[str]]:
    """Return the texts of a stream, of a pair both, in lists that are quick to tokenise."""
    return batched(texts_of(examples), _TEXTS_AT_ONCE, len)


def token_counts(tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example]) -> Counter[int]:
    """Return how often each token id occurs in a stream of whole texts; special tokens are not put around them."""
    counts: Counter[int] = Counter()
    for texts in text_batches(examples):
        ids = np.frombuffer(b"".join(shared_encoder(tokenizer).ids(texts)), np.int64)
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


def tokenizer_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def first_tokens(words: Sequence[int | None]) -> list[int]:
    """Return for every token the number of the word that starts there, counted from 1; 0 where none does.

    Args:
        words: for every token the word that it is of, counted from 0; None for special tokens.
    """
    pairs = itertools.pairwise([None, *words])
    return [word + 1 if word is not None and word != before else 0 for before, word in pairs]


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
    refuse(
        (not np.isfinite(answers).all(), "the model gave logits that are not finite numbers; its weights are damaged")
    )
    found[before[row] + starts[row, token] - 1] = answers
    return found


def word_counts(examples: Iterable[Example]) -> list[int]:
    return [len(example.words) for example in examples]


def by_sentence(values: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Cut ``[W, ...]`` into one array for each sentence."""
    return [values[end - count : end] for count, end in zip(counts, itertools.accumulate(counts), strict=True)]
