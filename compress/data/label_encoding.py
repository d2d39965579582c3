"""Infer the task and the labels of examples, and encode labels as numbers."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal

from compress.data.examples import Example
from compress.errors import CompressError, did_you_mean, some_of
from compress.progress import logger

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)  # beyond it a Decimal is none
_SHOWN_CHARACTERS = 40


def encode_gold(
    examples: Sequence[Example], labels: Sequence[str], *, task: str, name: str
) -> list[int] | list[float] | list[list[int]]:
    """Return gold labels as a model counts them: class indices, scores for regression, a list of tags for tagging."""
    if task == "tagging":
        return encode_tags(examples, labels, name=name)
    return encode_scores(examples, name=name) if task == "regression" else encode_labels(examples, labels, name=name)


def infer_task(examples: Sequence[Example]) -> str:
    """Return ``tagging`` when words are labelled, else ``regression`` or ``classification`` by the labels.

    Raises:
        CompressError: some rows have tags and some have labels.
    """
    tagged = sum(example.tags is not None for example in examples)
    if 0 < tagged < len(examples):
        raise CompressError(
            f"{tagged:,} of {len(examples):,} rows have a tag for each word and the others do not: give data of one "
            "kind."
        )
    return "tagging" if tagged else "regression" if infer_labels(examples) is None else "classification"


def infer_labels(examples: Sequence[Example]) -> tuple[str, ...] | None:
    """Return the class names in order, or None when the labels are scores to regress on.

    Of rows to tag they are the tags, sorted as text. Labels are scores when all are numbers and one has a fraction, or
    when they are integers with more than 50 different values of fewer than five rows each. Integer classes are sorted
    as numbers, others as text.

    Raises:
        CompressError: two classes are one number, or one text, written in two ways, such as ``1`` and ``1.0``.
    """
    if tags := {tag for example in examples for tag in example.tags or ()}:
        return tuple(sorted(tags))
    counts = Counter(example.label for example in examples if example.label is not None)
    numbers = [finite_number(label) for label in counts]
    if numbers and all(number is not None for number in numbers):
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
        other = known.setdefault(_identity(label), label)
        if other != label:
            raise CompressError(
                f"The labels {other!r} and {label!r} are one class written in two ways: write them alike in all files."
            )
    return tuple(sorted(names, key=float) if all(finite_number(name) is not None for name in names) else names)


def check_classes(train: Sequence[Example], validation: Sequence[Example]) -> None:
    """Say which classes a new classifier gets, and warn of those that are in validation alone.

    Raises:
        CompressError: two classes differ in case alone, or none of validation is in train: they are named in another
            way, or of another task.
    """
    counts, classes = (Counter(row.label for row in rows if row.label is not None) for rows in (train, validation))
    if counts and classes and not counts.keys() & classes.keys():
        raise CompressError(
            f"validation has the classes {some_of(sorted(classes))}, and train has {some_of(sorted(counts))}: write "
            "them alike."
        )
    folded = dict[str, str]()
    for label in sorted(counts | classes):
        if (other := folded.setdefault(label.casefold(), label)) != label:
            raise CompressError(
                f"The labels {other!r} and {label!r} differ in case alone: write them alike in all files, or, if they "
                "are two classes, name them apart."
            )
    least_first = [f"{label!r:.{_SHOWN_CHARACTERS}} {rows:,}" for label, rows in reversed(counts.most_common())]
    logger.info("rows of each class of train: %s", some_of(least_first))
    if unseen := sorted(classes.keys() - counts.keys()):
        logger.warning("validation has classes of which train has no row to learn from: %s", some_of(unseen))


def encode_labels(examples: Iterable[Example], labels: Sequence[str], *, name: str) -> list[int]:
    """Return each example's index in ``labels``.

    Args:
        examples: labelled rows; a label is a name in ``labels`` or its index.
        labels: the teacher's labels in the order of its ``id2label``.
        name: what to call the set in an error, for example ``"validation"``.

    Raises:
        CompressError: for a label outside the set, naming its value and row. An index is not accepted
            where any of the names is itself a number, because ``1`` would then mean two things.
    """
    index = label_index(labels)
    encoded = []
    for row, example in enumerate(examples, start=1):
        position = None if example.label is None else index.get(example.label)
        if position is None:
            raise _label_error(example, row, labels, name)
        encoded.append(position)
    return encoded


def label_index(labels: Sequence[str]) -> dict[str, int]:
    """Return the index of each name in ``labels``, and of each index as text where no name is a number."""
    index = {label: position for position, label in enumerate(labels)}
    if not any(NUMBER.fullmatch(label) for label in labels):
        index |= {str(position): position for position in range(len(labels))}
    return index


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
                f"{_row(row, example, name)} has {len(example.tags or ())} tags for {len(example.words)} words, but "
                "the model tags words: give CoNLL-U, or JSON Lines with the lists words and tags."
            )
        unknown = next((tag for tag in example.tags if tag not in index), None)
        if unknown is not None:
            raise CompressError(
                f"{_row(row, example, name)} has the tag {unknown!r}, which the model does not know: allowed are "
                f"{some_of(labels)}; correct the file or give data of the same tag set.{did_you_mean(unknown, labels)}"
            )
        encoded.append([index[tag] for tag in example.tags])
    return encoded


def encode_scores(examples: Iterable[Example], *, name: str) -> list[float]:
    """Return each example's label as a finite number, for regression."""
    scores = []
    for row, example in enumerate(examples, start=1):
        score = None if example.label is None else finite_number(example.label)
        if score is None:
            raise CompressError(
                f"{_row(row, example, name)} has the label {example.label!r}, but regression needs a number: "
                "correct the row or name another column with --label-column."
            )
        scores.append(score)
    return scores


def _row(number: int, example: Example, name: str) -> str:
    """Name a row by the start of its text too, as rows without text are not counted, nor a header."""
    start = example.text[:_SHOWN_CHARACTERS]
    return f"Row {number} of {name} ({start + ('...' if len(example.text) > len(start) else '')!r})"


def _label_error(example: Example, row: int, labels: Sequence[str], name: str) -> CompressError:
    shown, label = some_of(labels), example.label
    if label is None:
        return CompressError(
            f"{_row(row, example, name)} has no label, but one of {shown} is needed: remove the row or name another "
            "column with --label-column."
        )
    folded = {key: known for known in labels for key in (known.casefold(), _identity(known))}
    same = folded.get(label.casefold()) or folded.get(_identity(label))
    hint = f" Did you mean {same!r}?" if same else did_you_mean(label, labels)
    return CompressError(
        f"{_row(row, example, name)} has the label {label!r}, which the model does not know: allowed are {shown} "
        f"(or an index where no name is a number); correct the file or name another column with "
        f"--label-column.{hint}"
    )


def _identity(label: str) -> Decimal | str:
    """Return what two labels share that differ in how they are written alone."""
    return Decimal(label) if NUMBER.fullmatch(label) else unicodedata.normalize("NFKC", label)


def finite_number(text: str) -> float | None:
    """Return the finite number that a text is; None where it is none."""
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None
