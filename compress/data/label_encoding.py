"""Infer the labels of examples, and find the numbers of classes however they are written."""

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

from compress.data.examples import Example, normalise
from compress.errors import CompressError, did_you_mean, refuse, some_of
from compress.files import printable_name, read_json_table, read_toml
from compress.progress import logger

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)  # beyond it a Decimal is none
_SHOWN_CHARACTERS = 40
_UNNAMED = re.compile("LABEL_[0-9]+")  # what transformers calls classes that nobody named


def class_identity(name: str) -> Decimal | str:
    """Return what all spellings of a class share: numbers their value, names all but case, white space and the like."""
    return Decimal(name) if NUMBER.fullmatch(name) else normalise(name)


def infer_labels(examples: Sequence[Example]) -> tuple[str, ...] | None:
    """Return the class names in order, or None when the labels are scores to regress on.

    Of rows to tag they are the tags. Labels are scores when all are numbers and one has a fraction, or when they are
    integers with more than 50 different values of fewer than five rows each. Classes have the order of the file's
    schema; without, integers are sorted as numbers, others as text.

    Raises:
        CompressError: two classes are one number, or one text, written in two ways, such as ``1`` and ``1.0``.
    """
    tags = Counter(tag for example in examples for tag in example.tags or ())
    counts = tags or Counter(example.label for example in examples if example.label is not None)
    known = {example.origin.classes for example in examples if example.origin is not None}
    if len(known) == 1 and counts.keys() <= set(classes := next(iter(known))):
        return tuple(name for name in classes if name in counts)
    numbers = [finite_number(label) for label in counts]
    if not tags and numbers and all(number is not None for number in numbers):
        has_fraction = any(number is not None and not number.is_integer() for number in numbers)
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


class LabelIndex:
    """The numbers of a model's classes by their names, however these are written.

    Integers are the order of the classes where no name is a number: ``1`` would then mean two things. Names of a
    schema are its order where nobody named the classes of the model. Either is said once.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels
        self.numbers = {label: number for number, label in enumerate(labels)}
        spellings = Counter(map(class_identity, labels))
        self._same = {key: n for n, label in enumerate(labels) if spellings[key := class_identity(label)] == 1}
        self._counted = not any(NUMBER.fullmatch(label) for label in labels)
        self._unnamed = all(_UNNAMED.fullmatch(label) for label in labels)
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
            what, index = ("tag", "") if example.tags else ("label", " (or an index where no name is a number)")
            meant = f"{{{json.dumps(label)}: {json.dumps(self.labels[0])}, ...}}"
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
    """Return the function that gives a row, of the classes of its file's schema, those of its label or tags.

    Args:
        given: a JSON or TOML file with a table of labels and classes, or such a table.

    Raises:
        CompressError: it is none, or empty; also the function, where a label has no class.
    """
    name = "the label map" if isinstance(given, Mapping) else printable_name(given)
    if isinstance(given, Mapping):
        table: Mapping[str, object] = given
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
        if row.label is not None:
            return replace(row, label=class_of(row, row.label, classes))
        return replace(row, tags=row.tags and tuple(class_of(row, tag, classes) for tag in row.tags))

    return renamed


def row_name(number: int, example: Example, name: str) -> str:
    """Name a row by its place in its file, or in the set where it is of none, and by the start of its text."""
    start = example.text[:_SHOWN_CHARACTERS]
    where = example.where or f"Row {number} of {name}"
    return f"{where} ({start + ('...' if len(example.text) > len(start) else '')!r})"


def finite_number(text: str) -> float | None:
    """Return the finite number that a text is; None where it is none."""
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None
