"""What a row of text is: examples, their keys for overlap, their labels."""

from __future__ import annotations

import functools
import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compress.errors import CompressError, did_you_mean

_PAIR_SEPARATOR = "\x1f"
_NO_BREAK_SPACE = "\u00a0"
_INTEGER = re.compile(r"[+-]?\d+")
_SHOWN_LABELS = 10


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


class ContentFingerprint:
    """A fingerprint of rows that does not depend on their order; repeated rows count.

    The rows' digests are added modulo 2**256, so that a stream of any length needs no memory.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._total = 0

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
    """Return the :class:`ContentFingerprint` of a set of rows."""
    fingerprint = ContentFingerprint()
    for example in examples:
        fingerprint.add(example)
    return fingerprint.sha256()


def encode_gold(
    examples: Sequence[Example], labels: Sequence[str], *, task: str, name: str
) -> list[int] | list[float] | list[list[int]]:
    """Return gold labels as a model counts them: class indices, scores for regression, a list of tags for tagging."""
    if task == "tagging":
        return encode_tags(examples, labels, name=name)
    return encode_scores(examples, name=name) if task == "regression" else encode_labels(examples, labels, name=name)


def infer_task(examples: Iterable[Example]) -> str:
    """Return ``tagging`` when words are labelled, else ``regression`` or ``classification`` by the labels.

    Raises:
        CompressError: some rows have tags and some have labels.
    """
    rows = list(examples)
    tagged = sum(example.tags is not None for example in rows)
    if 0 < tagged < len(rows):
        raise CompressError(
            f"{tagged:,} of {len(rows):,} rows have a tag for each word and the others do not: give data of one kind."
        )
    return "tagging" if tagged else "regression" if infer_labels(rows) is None else "classification"


def texts_of(examples: Iterable[Example]) -> Iterator[str]:
    """Yield the texts of rows in order, of a pair both."""
    for example in examples:
        yield example.text
        if example.text_pair is not None:
            yield example.text_pair


def describe_rows(sets: Mapping[str, Sequence[Example]]) -> list[dict[str, Any]]:
    """Return a :func:`data_entry` for every role that has rows."""
    entries = []
    for role, examples in sets.items():
        fingerprint = ContentFingerprint()
        for example in examples:
            fingerprint.add(example)
        if examples:
            entries.append(data_entry(role, role, fingerprint))
    return entries


def data_entry(role: str, name: str, fingerprint: ContentFingerprint) -> dict[str, Any]:
    """Return what a manifest records of a set: its role, name, rows and fingerprint."""
    return {"role": role, "name": name, "rows": fingerprint.rows, "sha256": fingerprint.sha256()}


def infer_labels(examples: Iterable[Example]) -> tuple[str, ...] | None:
    """Return the class names in order, or None when the labels are scores to regress on.

    Of rows to tag they are the tags, sorted as text. Labels are scores when all are numbers and one has a fraction, or
    when they are integers with more than 50 different values of fewer than five rows each. Integer classes are sorted
    as numbers, others as text.
    """
    counts: dict[str, int] = {}
    tags: set[str] = set()
    for example in examples:
        tags.update(example.tags or ())
        if example.label is not None:
            counts[example.label] = counts.get(example.label, 0) + 1
    if tags:
        return tuple(sorted(tags))
    numbers = [_number(label) for label in counts]
    if numbers and all(number is not None for number in numbers):
        if any(number is not None and not number.is_integer() for number in numbers):
            return None
        if len(counts) > 50 and sum(counts.values()) < 5 * len(counts):
            return None
        return tuple(sorted(counts, key=lambda label: (float(label), label)))
    return tuple(sorted(counts))


def encode_labels(examples: Iterable[Example], labels: Sequence[str], *, name: str) -> list[int]:
    """Return each example's index in ``labels``.

    Args:
        examples: labelled rows; a label is a name in ``labels`` or its index.
        labels: the teacher's labels in the order of its ``id2label``.
        name: what to call the set in an error, for example ``"validation"``.

    Raises:
        CompressError: for a label outside the set, naming its value and row. An index is not accepted
            where any of the names is itself an integer, because ``1`` would then mean two things.
    """
    index = {label: position for position, label in enumerate(labels)}
    if not any(_INTEGER.fullmatch(label) for label in labels):
        index |= {str(position): position for position in range(len(labels))}
    encoded = []
    for row, example in enumerate(examples, start=1):
        position = None if example.label is None else index.get(example.label)
        if position is None:
            raise _label_error(example.label, row, labels, name)
        encoded.append(position)
    return encoded


def encode_tags(examples: Iterable[Example], labels: Sequence[str], *, name: str) -> list[list[int]]:
    """Return the index in ``labels`` of the tag of every word of every example.

    Raises:
        CompressError: a sentence without tags, with more or fewer tags than words, or with a tag outside the set.
    """
    index = {label: position for position, label in enumerate(labels)}
    encoded = []
    for row, example in enumerate(examples, start=1):
        if example.tags is None or len(example.tags) != len(example.words):
            raise CompressError(
                f"Row {row} of {name} has {len(example.tags or ())} tags for {len(example.words)} words, but the model "
                "tags words: give CoNLL-U, or JSON Lines with the lists words and tags."
            )
        unknown = next((tag for tag in example.tags if tag not in index), None)
        if unknown is not None:
            raise CompressError(
                f"Row {row} of {name} has the tag {unknown!r}, which the model does not know: allowed are "
                f"{_listed(labels)}; correct the file or give data of the same tag set.{did_you_mean(unknown, labels)}"
            )
        encoded.append([index[tag] for tag in example.tags])
    return encoded


def encode_scores(examples: Iterable[Example], *, name: str) -> list[float]:
    """Return each example's label as a finite number, for regression."""
    scores = []
    for row, example in enumerate(examples, start=1):
        score = None if example.label is None else _number(example.label)
        if score is None:
            raise CompressError(
                f"Row {row} of {name} has the label {example.label!r}, but regression needs a number: "
                "correct the row or name another column with --label-column."
            )
        scores.append(score)
    return scores


@functools.cache
def _punctuation() -> dict[int, str]:
    """Return every punctuation mark mapped to a space; ``\\w`` would drop the vowel signs of Hindi."""
    return {code: " " for code in range(0x10000) if unicodedata.category(chr(code))[0] == "P"}


def _label_error(label: str | None, row: int, labels: Sequence[str], name: str) -> CompressError:
    shown = _listed(labels)
    if label is None:
        return CompressError(
            f"Row {row} of {name} has no label, but one of {shown} is needed: remove the row or name another "
            "column with --label-column."
        )
    folded = {known.casefold(): known for known in labels}
    same = folded.get(label.casefold())
    hint = f" Did you mean {same!r}?" if same else did_you_mean(label, labels)
    return CompressError(
        f"Row {row} of {name} has the label {label!r}, which the model does not know: allowed are {shown} "
        f"(or an index where no name is a number); correct the file or name another column with "
        f"--label-column.{hint}"
    )


def _listed(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:_SHOWN_LABELS])
    return shown if len(labels) <= _SHOWN_LABELS else f"{shown}, ... ({len(labels)} in all)"


def _number(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
