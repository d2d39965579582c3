"""Examples (text, pair, label, tags), their normalisation, and the keys that overlap checks compare."""

import functools
import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_PAIR_SEPARATOR = "\x1f"
_NO_BREAK_SPACE = "\u00a0"


@dataclass(frozen=True, slots=True)
class Example:
    """One row: a text or a pair of texts, and its label as written in the file (None when unlabelled).

    A row to tag is a sentence: ``text`` is its words with a space between them (:func:`sentence`), and ``tags`` are the
    labels of the words, one each; its ``label`` is None.
    """

    text: str
    text_pair: str | None = None
    label: str | None = None
    tags: tuple[str, ...] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a sentence: what stands between spaces, punctuation marks of their own among them."""
        return tuple(word for word in self.text.split(" ") if word)


@dataclass(frozen=True)
class Columns:
    """Which columns hold what: names, or ``"0"``, ``"1"``, ... for files without a header."""

    text: str
    text_pair: str | None = None
    label: str | None = None


def sentence(words: Iterable[str]) -> str:
    """Return words as the text of a row to tag. White space within a word becomes a no-break space (U+00A0)."""
    return " ".join(_NO_BREAK_SPACE.join(word.split()) for word in words)


def normalise(text: str) -> str:
    """Return the text as overlap sees it: NFKC, case folded, white space collapsed."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def words(text: str) -> tuple[str, ...]:
    """Return the normalised text's words without punctuation: ``bad`` and ``bad .`` are the same row.

    Symbols and emoji are kept because they carry meaning; so is punctuation where there is nothing else.
    """
    plain = normalise(text)
    return tuple(plain.translate(_punctuation()).split()) or (plain,)


def row_key(example: Example) -> bytes:
    """Return 8 bytes that are equal for rows with the same words (of the pair too); labels do not count."""
    text = " ".join(words(example.text))
    if example.text_pair is not None:
        text += _PAIR_SEPARATOR + " ".join(words(example.text_pair))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def texts_of(examples: Iterable[Example]) -> Iterator[str]:
    """Yield the texts of rows in order, of a pair both."""
    for example in examples:
        yield example.text
        if example.text_pair is not None:
            yield example.text_pair


@functools.cache
def _punctuation() -> dict[int, str]:
    """Return every punctuation mark mapped to a space; ``\\w`` would drop the vowel signs of Hindi."""
    return {code: " " for code in range(0x10000) if unicodedata.category(chr(code))[0] == "P"}
