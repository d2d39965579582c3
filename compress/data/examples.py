"""Examples (text, pair, label, tags), their normalisation, and their keys and content hashes."""

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np

_PAIR_SEPARATOR = "\x1f"
_NO_BREAK_SPACE = "\u00a0"
# What Unicode says to ignore (Default_Ignorable_Code_Point): soft hyphens, zero-width characters, marks of direction.
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_PIECES = re.compile(r"\s+|\S{1,1000}")  # normalising takes squared time where a text is combining marks
Item = TypeVar("Item")
Overlap: TypeAlias = Literal["few", "drop", "refuse"]  # see LabelledData


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """What the rows of a file share: its name, how it counts rows, and what its schema calls the classes, in order."""

    name: str
    unit: str = "row"  # or "line"
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """One row: a text or a pair of texts, and its label as written in the file (None when unlabelled).

    A row to tag is a sentence: ``text`` is its words with a space between them (:func:`sentence`), and ``tags`` are the
    labels of the words, one each; its ``label`` is None. ``origin`` and ``number`` say where a row was read, and
    ``values`` are its cells in further columns that were asked for.
    """

    text: str
    text_pair: str | None = None
    label: str | None = None
    tags: tuple[str, ...] | None = None
    origin: RowOrigin | None = field(default=None, compare=False, repr=False)
    number: int = field(default=0, compare=False, repr=False)
    values: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def where(self) -> str:
        """The file of the row and its line or number there; empty for a row of no file."""
        return f"{self.origin.name}, {self.origin.unit} {self.number}" if self.origin else ""

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


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items of a stream in lists of ``size``, the last of which may be shorter."""
    stream = iter(items)
    while batch := list(itertools.islice(stream, size)):
        yield batch


def sentence(words: Iterable[str]) -> str:
    """Return words as the text of a row to tag. White space within a word becomes a no-break space (U+00A0)."""
    return " ".join(_NO_BREAK_SPACE.join(word.split()) for word in words)


def normalise(text: str) -> str:
    """Return the text as overlap sees it: NFKC, case folded, white space collapsed, and without invisible characters.

    A text of nothing else keeps them.
    """
    if not text.isascii():
        text = _IGNORED.sub("", text) or text
        text = "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECES.findall(text))
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


def row_keys(examples: Iterable[Example]) -> "np.ndarray":
    """Return the :func:`row_key` of every row as a number, uint64 ``[N]``: eight bytes a row, of a stream too."""
    import numpy as np

    return np.fromiter((int.from_bytes(row_key(example), "big") for example in examples), np.uint64)


def among(keys: "np.ndarray", known: Iterable[bytes]) -> "np.ndarray":
    """Tell of each of the keys ``[N]`` of :func:`row_keys` whether it is one of those of :func:`row_key`, ``[N]``."""
    import numpy as np

    return np.isin(keys, np.fromiter((int.from_bytes(key, "big") for key in known), np.uint64))


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


@dataclass(frozen=True)
class LabelledData:
    """Labelled rows by role.

    Args:
        train: rows to fit on, to score heads on, or to calibrate with.
        validation: rows to select by.
        metric: the metric of the selection; by default accuracy, or Pearson's correlation for regression.
        overlap: what becomes of rows that occur in two roles, such as ``train`` and ``validation``: ``few`` leaves a
            few out of the earlier one (at most 1% of the rows of each of both, of fewer than 300 rows 3, and of fewer
            than 30 a tenth) and refuses more, ``drop`` leaves out all, and ``refuse`` refuses any.
    """

    train: Sequence[Example] = ()
    validation: Sequence[Example] = ()
    metric: str | None = None
    overlap: Overlap = "few"


class ContentFingerprint:
    """A fingerprint of rows that does not depend on their order; repeated rows count.

    The rows' digests are added modulo 2**256, so that a stream of any length needs no memory.
    """

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self.rows = 0
        self._total = 0
        for example in examples:
            self.add(example)

    def add(self, example: Example) -> None:
        parts = [example.text, example.text_pair, example.label, *(example.tags or ())]
        row = "\x1e".join("\x00" if part is None else "\x01" + part for part in parts)
        self._total += int.from_bytes(hashlib.sha256(row.encode("utf-8", "surrogatepass")).digest(), "big")
        self.rows += 1

    def watch(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the examples and count each as it streams past, so that a source is read once."""
        for example in examples:
            self.add(example)
            yield example

    def sha256(self) -> str:
        return hashlib.sha256(f"{self.rows}:{self._total % 2**256:064x}".encode()).hexdigest()


def without_label(example: Example) -> Example:
    """Return the row as a pool holds it; pools are fingerprinted without labels."""
    return Example(example.text, example.text_pair)


def content_sha256(examples: Iterable[Example]) -> str:
    return ContentFingerprint(examples).sha256()


def describe_rows(sets: Mapping[str, Sequence[Example]]) -> list[dict[str, Any]]:
    """Return a :func:`data_entry` for every role that has rows."""
    return [data_entry(role, role, ContentFingerprint(rows)) for role, rows in sets.items() if rows]


def data_entry(role: str, name: str, fingerprint: ContentFingerprint) -> dict[str, Any]:
    """Return what a manifest records of a set: its role, name, rows and fingerprint."""
    return {"role": role, "name": name, "rows": fingerprint.rows, "sha256": fingerprint.sha256()}
