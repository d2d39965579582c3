"""Which rows a model answers differently from its teacher, class by class and row by row.

Results know rows by their number. Texts are shown only where whoever makes the report hands over the file they are in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compress.benchmarking.results.formatting import NONE, points
from compress.benchmarking.results.schema import Measurement
from compress.data.examples import Example
from compress.errors import CompressError
from compress.reporting.tables import PAGE_ONLY, calibration, number, share

WORST_SHOWN = 10


@dataclass(frozen=True)
class Flip:
    """A row of the test set, counted from 0 without a header; ``change`` is of the gold label's probability, in points.

    The page counts rows from 1, as messages do. ``text`` is empty unless the report was given the texts. For tagging
    ``row`` is a sentence; its text begins with the word.
    """

    row: int
    gold: str
    predicted: str
    change: float
    text: str = field(default="", metadata=PAGE_ONLY)


@dataclass(frozen=True)
class ClassChange:
    """How the recall of a class changed against the teacher, in points, with its paired interval."""

    label: str
    rows: int
    recall: str
    teacher_recall: str
    difference_points: float | None
    change: str
    interval: str


@dataclass(frozen=True)
class Flips:
    """What one model changed: rows lost and won against the teacher, the worst of them, and the classes by loss."""

    model: str
    runtime: str
    kind: str
    lost_rows: int
    won_rows: int
    lost: list[Flip]
    won: list[Flip]
    classes: list[ClassChange]
    calibration: str


def flips_of(lines: Sequence[Measurement], texts: Mapping[str, Sequence[str]]) -> list[Flips]:
    """Return what every model changed, one runtime each, in the order of the lines; a competitor has rows of its own.

    ``texts`` are the rows of a data set by its content hash.
    """
    found: dict[tuple[str, str, str], Flips] = {}
    for line in lines:
        if line.kind != "teacher" and line.flips_lost_rows is not None:
            tool = line.runtime if line.kind == "competitor" else ""  # each answers in its own way
            found.setdefault((line.model, line.model_sha256, tool), _flips(line, texts.get(line.data_sha256, ())))
    return list(found.values())


def _flips(line: Measurement, texts: Sequence[str]) -> Flips:
    return Flips(
        line.model,
        line.runtime,
        line.kind,
        line.flips_lost_rows or 0,
        line.flips_won_rows or 0,
        [_flip(one, line.labels, texts) for one in line.flips_lost[:WORST_SHOWN]],
        [_flip(one, line.labels, texts) for one in line.flips_won[:WORST_SHOWN]],
        sorted(map(_class, line.classes), key=lambda c: (c.difference_points is None, c.difference_points or 0.0)),
        str(calibration(line)),
    )


def _flip(one: Mapping[str, Any], labels: Sequence[str], texts: Sequence[str]) -> Flip:
    row = one["row"]
    text = texts[row] if row < len(texts) else ""
    if text and "word" in one:  # a row to tag is a sentence, its words apart
        words = Example(text).words
        if one["word"] >= len(words):
            raise CompressError(
                f"a flip is of word {one['word'] + 1} of row {row + 1}, which has {len(words)}; run the benchmark again"
            )
        text = f"{words[one['word']]}: {text}"
    return Flip(row, _label(one["gold"], labels), _label(one["predicted"], labels), one["change"], text)


def _label(value: float, labels: Sequence[str]) -> str:
    """Return a class by its name, a score as it is; a word that was cut off is predicted to be -1."""
    return labels[value] if isinstance(value, int) and 0 <= value < len(labels) else f"{value:g}"


def _class(one: Mapping[str, Any]) -> ClassChange:
    change = number(one["difference_points"], points, (one["low"], one["high"]))
    return ClassChange(
        one["label"],
        one["rows"],
        share(one["recall"]).text,
        share(one["teacher_recall"]).text,
        one["difference_points"],
        change.text,
        change.small or NONE,
    )
