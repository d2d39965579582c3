"""Examples (text, pair, label or labels, tags), their normalisation, keys and hashes; and the classes of their labels.

Labels are inferred, and found in a model's order, however they are written.
"""

import functools
import hashlib
import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from compress.arrays import np
from compress.errors import CompressError, did_you_mean, refuse, some_of
from compress.files import printable_name, read_json_table, read_text, read_toml
from compress.progress import logger

PART_CHARACTERS = 2**22  # read at a time: an encoding has a hundred bytes a character, also of what is cut
_PAIR_SEPARATOR = "\x1f"
_NO_BREAK_SPACE = "\u00a0"
# What Unicode says to ignore (Default_Ignorable_Code_Point): soft hyphens, zero-width characters, marks of direction.
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_PIECES = re.compile(r"\s+|\S{1,1000}")  # normalising takes squared time where a text is combining marks
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)  # beyond it a Decimal is none
_SHOWN_CHARACTERS = 40
_UNNAMED = re.compile("LABEL_[0-9]+")  # what transformers calls classes that nobody named
Item = TypeVar("Item")
Overlap: TypeAlias = Literal["few", "drop", "refuse"]  # see LabelledData


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """What the rows of a file share: its name, how it counts rows, and what its schema calls the classes, in order."""

    name: str
    unit: str = "row"  # or "line"
    classes: tuple[str, ...] = ()
    all_count: bool = False  # whether classes are labels of a model even where no row has them


@dataclass(frozen=True, slots=True)
class Example:
    """One row: a text or a pair of texts, and its label as written in the file (None when unlabelled).

    A row of several labels has these in ``labels``, each once, maybe none, and its ``label`` is None too. A row that
    has one label in a list has it in both: it may be of a classifier, or of a model that gives several.
    A row to tag is a sentence: ``text`` is its words with a space between them (:func:`sentence`), and ``tags`` are the
    labels of the words, one each; its ``label`` is None. ``origin`` and ``number`` say where a row was read, and
    ``values`` are its cells in further columns that were asked for, and ``query`` that in the column of queries.
    ``given`` is the text as it was given, where
    that is another: with white space around it, or before its words were found (:mod:`compress.data.words`).
    """

    text: str
    text_pair: str | None = None
    label: str | None = None
    tags: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    origin: RowOrigin | None = field(default=None, compare=False, repr=False)
    number: int = field(default=0, compare=False, repr=False)
    values: tuple[str, ...] = field(default=(), compare=False, repr=False)
    given: str = field(default="", compare=False, repr=False)
    query: str = field(default="", compare=False, repr=False)

    @property
    def where(self) -> str:
        """The file of the row and its line or number there; empty for a row of no file."""
        return f"{self.origin.name}, {self.origin.unit} {self.number}" if self.origin else ""

    @property
    def is_labelled(self) -> bool:
        return any(given is not None for given in (self.label, self.tags, self.labels))

    @property
    def all_labels(self) -> tuple[str, ...]:
        """All that the row is labelled with, of a sentence the tags of its words."""
        return self.tags or self.labels or (() if self.label is None else (self.label,))

    @property
    def has_set(self) -> bool:
        """Whether only a model that gives several labels can have the labels of the row."""
        return self.labels is not None and self.label is None

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
    each: tuple[str, ...] = ()  # where every label has a column: these, the first of which is ``label`` too


def batched(items: Iterable[Item], size: int, characters: Callable[[Item], int] | None = None) -> Iterator[list[Item]]:
    """Yield the items of a stream in lists of ``size``, the last of which may be shorter.

    With ``characters``, those of an item, a list ends after the item that makes them :data:`PART_CHARACTERS`.
    """
    stream = iter(items)
    if characters is None:
        while batch := list(itertools.islice(stream, size)):
            yield batch
        return
    batch, read = [], 0
    for item in stream:
        batch.append(item)
        read += characters(item)
        if len(batch) == size or read >= PART_CHARACTERS:
            yield batch
            batch, read = [], 0
    if batch:
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


def plain_text(example: Example) -> str:
    """Return the words of a row, of a pair those of both texts: what rows are compared by."""
    return _PAIR_SEPARATOR.join(" ".join(words(text)) for text in texts_of([example]))


def row_key(example: Example) -> bytes:
    """Return 8 bytes that are equal for rows with the same words (of the pair too); labels do not count."""
    return hashlib.blake2b(plain_text(example).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def row_keys(examples: Iterable[Example]) -> "np.ndarray":
    """Return the :func:`row_key` of every row as a number, uint64 ``[N]``: eight bytes a row, of a stream too."""
    return np.fromiter((int.from_bytes(row_key(example), "big") for example in examples), np.uint64)


def among(keys: "np.ndarray", known: Iterable[bytes]) -> "np.ndarray":
    """Tell of each of the keys ``[N]`` of :func:`row_keys` whether it is one of those of :func:`row_key`, ``[N]``."""
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
        if example.labels is not None and example.label is None:
            parts += ["labels", *sorted(example.labels)]
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


def class_identity(name: str) -> Decimal | str:
    """Return what all spellings of a class share: numbers their value, names all but case, white space and the like."""
    return Decimal(name) if NUMBER.fullmatch(name) else normalise(name)


def infer_labels(examples: Sequence[Example]) -> tuple[str, ...] | None:
    """Return the class names in order, or None when the labels are scores to regress on.

    Of rows to tag they are the tags; these, and the labels of rows of several, are always names. Labels are scores when
    those of 9 in 10 rows are numbers (the task says which are none) and one has a fraction, or when they are integers
    with more than 50 different values of fewer than five rows each. Classes have the order of the file's schema;
    without, integers are sorted as numbers, others as text.

    Raises:
        CompressError: two classes are one number, or one text, written in two ways, such as ``1`` and ``1.0``.
    """
    named = any(example.tags or example.has_set for example in examples)
    counts = Counter(label for example in examples for label in example.all_labels)
    known = {example.origin.classes for example in examples if example.origin is not None}
    if len(known) == 1 and counts.keys() <= set(classes := next(iter(known))):
        kept = classes if all(example.origin.all_count for example in examples if example.origin) else counts
        return tuple(name for name in classes if name in kept)
    numbers = {label: number for label in counts if (number := finite_number(label)) is not None}
    if not named and numbers and sum(map(counts.__getitem__, numbers)) >= 0.9 * counts.total():
        has_fraction = any(not number.is_integer() for number in numbers.values())
        if has_fraction or (len(counts) > 50 and counts.total() < 5 * len(counts)):
            return None
    return sort_labels(counts)


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return different class names in order: as numbers where all are numbers, else as text.

    Raises:
        CompressError: two are one number, or one text, written in two ways.
    """
    names, known = sorted(labels), dict[Decimal | str, str]()
    for label in names:
        other = known.setdefault(class_identity(label), label)
        if other != label:
            raise CompressError(
                f"The labels {other!a} and {label!a} are one class written in two ways: write them alike in all files, "
                "or, if they are two classes, name them apart."
            )
    return tuple(sorted(names, key=float) if all(finite_number(name) is not None for name in names) else names)


def check_classes(train: Sequence[Example], validation: Sequence[Example]) -> None:
    """Say which classes a new classifier gets, and warn of those that are in validation alone.

    Raises:
        CompressError: no class of validation is in train: they are named in another way, or of another task.
    """
    counts, classes = (Counter(row.label for row in rows if row.label is not None) for rows in (train, validation))
    refuse(
        (
            counts and classes and not counts.keys() & classes.keys(),
            f"validation has the classes {some_of(sorted(classes))}, and train has {some_of(sorted(counts))}: write "
            "them alike, or say what they mean with --label-map FILE.",
        )
    )
    least_first = [f"{label!r:.{_SHOWN_CHARACTERS}} {rows:,}" for label, rows in reversed(counts.most_common())]
    logger.info("rows of each class of train: %s", some_of(least_first))
    if unseen := sorted(classes.keys() - counts.keys()):
        logger.warning("validation has classes of which train has no row to learn from: %s", some_of(unseen))


def warn_of_joint_classes(labels: Sequence[str]) -> None:
    """Warn of classes that are several labels of one text, written with a mark between them or as a list."""
    for mark in "|;,":
        names = {label: {part.strip() for part in label.split(mark)} for label in labels}
        counts = Counter(part for parts in names.values() for part in parts)
        joint = [label for label, parts in names.items() if len(parts) > 1 and all(counts[part] > 1 for part in parts)]
        if joint:
            logger.warning(
                "%s of %s classes are made of others, such as %s: if a text has several labels, type "
                "--label-separator '%s'",
                *(f"{len(joint):,}", f"{len(labels):,}", repr(joint[0]), mark),
            )
    if lists := [label for label in labels if label.startswith("[") and label.endswith("]")]:
        logger.warning(
            "%s of %s classes are lists in text, such as %s: if a text has several labels, write lists in JSON Lines, "
            "or text such as joy|love with --label-separator '|'",
            *(f"{len(lists):,}", f"{len(labels):,}", repr(lists[0])),
        )


class LabelIndex:
    """The numbers of a model's classes by their names, however these are written.

    Integers are the order of the classes where no name is a number: ``1`` would then mean two things. Names of a
    schema are its order where nobody named the classes of the model. Either is said once.
    """

    def __init__(self, labels: Sequence[str], ordered: bool = True) -> None:
        """``ordered`` says whether integers may be the order of classes that have names."""
        self.labels = labels
        self.numbers = {label: number for number, label in enumerate(labels)}
        spellings = Counter(map(class_identity, labels))
        self._same = {key: n for n, label in enumerate(labels) if spellings[key := class_identity(label)] == 1}
        self._unnamed = all(_UNNAMED.fullmatch(label) for label in labels)
        self._counted = (ordered or self._unnamed) and not any(NUMBER.fullmatch(label) for label in labels)
        self.order = ""  # how an order was taken for names

    def find(self, label: str, classes: Sequence[str] = ()) -> int:
        """Return the number of a class, -1 for an unknown one; ``classes`` are those of the file's schema, in order."""
        number = self.numbers.get(label)
        if number is None:
            number = self._same.get(class_identity(label))
        if number is None and self._unnamed and len(classes) == len(self.labels) and label in classes:
            self.order = f"the model's classes have no names, and are read as {some_of(classes)}"
            return classes.index(label)
        if number is None and self._counted:
            value = finite_number(label)
            if value is not None and value.is_integer() and 0 <= value < len(self.labels):
                number = int(value)
                if not self._unnamed and not self.order:
                    names = some_of([f"{number} = {name}" for number, name in enumerate(self.labels)])
                    self.order = f"labels that are numbers are read in the order of the model: {names}"
        return -1 if number is None else number

    def of(self, example: Example, label: str | None, row: int, name: str) -> int:
        """Return the number of a label of an example, the ``row``-th of a set that messages call ``name``.

        Raises:
            CompressError: it has none, or one that is no class.
        """
        number = -1 if label is None else self.find(label, example.origin.classes if example.origin else ())
        if number < 0:
            shown, place = some_of(self.labels), row_name(row, example, name)
            what, index = "tag" if example.tags else "label", " (or an index)" if self._counted else ""
            meant = f"{{{json.dumps(label)}: {json.dumps(self.labels[0])}, ...}}"
            refuse(
                (
                    label is None and example.labels is not None,
                    f"{place} has {len(example.labels or ())} labels, and the model gives each text one of {shown}: "
                    "give rows of one label, or a model that gives several.",
                )
            )
            raise CompressError(
                f"{place} has no label, but one of {shown} is needed: remove the row or name another column with "
                "--label-column."
                if label is None
                else f"{place} has the {what} {label!r}, which the model does not know: allowed are {shown}{index}; "
                "correct the file, name another column with --label-column, or say what its labels mean with "
                f"--label-map FILE, such as {meant}.{did_you_mean(label, self.labels)}"
            )
        _say_once(self.order)
        return number


@functools.lru_cache
def _say_once(order: str) -> None:
    """Say how labels were read, where nothing but their order tells; stages encode the same rows several times."""
    if order:
        logger.info("%s; say otherwise with --label-map FILE", order)


Renaming: TypeAlias = Callable[[Example, Sequence[str]], Example]


def label_map(given: str | Path | Mapping[str, str]) -> Renaming:
    """Return the function that gives a row, of the classes of its file's schema, those of its label, labels or tags.

    Args:
        given: a JSON or TOML file with a table of labels and classes, or such a table; or a text file with the names of
            the labels 0, 1, ... a line each.

    Raises:
        CompressError: it is none, or empty; also the function, where a label has no class.
    """
    name = "the label map" if isinstance(given, Mapping) else printable_name(given)
    if isinstance(given, Mapping):
        table: Mapping[str, object] = given
    elif name.endswith(".txt"):
        table = {str(number): line.strip() for number, line in enumerate(read_text(Path(given)).splitlines())}
    else:
        table = read_toml(Path(given)) if name.endswith(".toml") else read_json_table(Path(given))
    named = table and all(isinstance(value, str) and value for value in table.values())
    refuse((not named, f'{name} needs the name of a class for each label, such as {{"0": "bad", "1": "good"}}.'))
    known = {class_identity(str(key)): str(value) for key, value in table.items()}

    def class_of(row: Example, label: str, classes: Sequence[str]) -> str:
        keys = [label, *([str(classes.index(label))] if label in classes else ())]
        found = next((known[key] for key in map(class_identity, keys) if key in known), None)
        if found is None:
            raise CompressError(f"{row.where} has the label {label!r}, which {name} does not have: add it there.")
        return found

    def renamed(row: Example, classes: Sequence[str]) -> Example:
        label = None if row.label is None else class_of(row, row.label, classes)
        tags, labels = (
            names and tuple(class_of(row, name, classes) for name in names) for names in (row.tags, row.labels)
        )
        return replace(row, label=label, tags=tags, labels=labels and tuple(dict.fromkeys(labels)))

    return renamed


def row_name(number: int, example: Example, name: str) -> str:
    """Name a row by its place in its file, or in the set where it is of none, and by the start of its text."""
    text = example.text
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return f"{example.where or f'Row {number} of {name}'} ({shown!r})"


def finite_number(text: str) -> float | None:
    """Return the finite number that a text is; None where it is none."""
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None
