"""Infer delimiter, quoting, header, and the text and label columns of a table."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compress.data.cells import Cell, StructureError, inner_fields, label_of, text_of
from compress.data.examples import Columns
from compress.data.label_encoding import NUMBER
from compress.errors import CompressError, did_you_mean, some_of

Cells = Sequence[Cell]

TEXT_PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("#1_string", "#2_string"),
    ("query", "passage"),
    ("text", "text_pair"),
)
TEXT_COLUMNS = (
    "text",
    "sentence",
    "review",
    "utterance",
    "tweet",
    "comment",
    "content",
    "body",
    "message",
    "query",
    "question",
    "passage",
    "document",
    "headline",
    "description",
    "title",
    "phrase",
    "input",
    "data.text",  # Label Studio
    "fields.text",  # Argilla, and its first version
    "inputs.text",
    "words",
    "tokens",
)
LABELS = (
    "label",
    "labels",
    "category",
    "intent",
    "class",
    "sentiment",
    "target",
    "quality",
    "gold_label",
    "score",
    "similarity",
    "is_duplicate",
    "polarity",
    "topic",
    "rating",
    "stars",
    "coarse_label",
    "output",
    "annotations.result.value.choices",  # Label Studio
    "responses.label.value",  # Argilla, and its first version
    "annotation",
    "cats",  # spaCy
    "tags",
    "ner_tags",
)
WORDS = ("words", "tokens")  # lists, each word with a tag
_IDS = {"id", "idx", "index", "guid", "uid", "#1_id", "#2_id", "source", "url", "date"}
_USUAL = {name for pair in TEXT_PAIRS for name in pair} | set(TEXT_COLUMNS) | set(LABELS)
_IDENTIFIER = re.compile(r"(?!\d)[\w#][\w#./ -]{0,39}")


@dataclass(frozen=True)
class Dialect:
    """How a delimited file is written."""

    delimiter: str
    quoted: bool


def usual(name: str) -> str:
    """Return a column name as the lists of usual names spell it."""
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def csv_rows(lines: Iterable[str], dialect: Dialect) -> "csv._reader":  # type: ignore[name-defined]
    """Return a strict CSV reader over ``lines``."""
    return csv.reader(
        lines,
        delimiter=dialect.delimiter,
        quoting=csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE,
        strict=True,
    )


def sniff_dialect(lines: Sequence[str], suffix: str) -> Dialect | None:
    """Return how the sampled lines are delimited, or None when they are not a table.

    A ``.csv`` may be separated by commas, semicolons or tabs, a ``.tsv`` by tabs; a file with another
    suffix is a table only when nearly every line holds a tab. Tabs are taken as unquoted unless some
    cell needed its quotes: published TSV is full of quotation marks that mean nothing but themselves.
    """
    full = [line for line in lines if line.strip()]
    tabs = sum("\t" in line for line in full)
    if suffix == ".csv" and tabs < 0.95 * len(full):
        return Dialect(max(",;", key=lambda mark: full[0].count(mark)), quoted=True)
    if suffix in (".csv", ".tsv") or tabs >= 0.95 * len(full):
        return Dialect("\t", quoted=_needs_quotes(full))
    return None


def _needs_quotes(lines: Sequence[str]) -> bool:
    """Say whether tab-separated lines parse as quoted and would lose by being read without quoting."""
    rows: list[list[str]] = []
    reader = csv_rows(lines, Dialect("\t", quoted=True))
    try:
        rows.extend(reader)
    except csv.Error:
        # The sample may end inside a cell of several lines; anything earlier is a stray quotation mark.
        if reader.line_num < len(lines) or len(lines) - len(rows) > 50:
            return False
    bare = [line.rstrip("\n").split("\t") for line in lines]
    if len({len(row) for row in rows}) > 1:
        return False
    needed = any("\t" in cell or "\n" in cell for row in rows for cell in row)
    doubled = any(cell[0] == '"' and '""' in cell[1:-1] for row in bare for cell in row if len(cell) > 3)
    every = all(cell[:1] == '"' for row in bare for cell in row if cell and not NUMBER.fullmatch(cell))
    return needed or doubled or every


def has_header(rows: Sequence[Cells], wanted: Iterable[str | None] = ()) -> bool:
    """Say whether the first sampled row names the columns.

    It does when it holds a name the user asked for or two usual ones. Else all its cells must look like names, and one
    is usual and rare below, or stands above numbers or few repeated values among which it does not occur.
    """
    first = [text_of(cell).strip() for cell in rows[0]]
    names = [cell for cell in first if cell]  # the index that pandas writes has none
    if any(name in names for name in wanted if name and not name.isdigit()):
        return True
    known = [position for position, cell in enumerate(first) if usual(cell) in _USUAL]
    if len({usual(first[position]) for position in known}) > 1:  # a usual name may stand there twice
        return True
    doubled = len(set(names)) < len(names) and len(known) < len(names)  # a usual name may stand there alone, twice
    if doubled or not all(map(_IDENTIFIER.fullmatch, names)):
        return False
    body = rows[1:]
    if known:  # unless many rows have it again, such as the class "question"
        below = [text_of(row[known[0]]).strip() for row in body if known[0] < len(row)]
        return below.count(first[known[0]]) <= len(below) / 10
    for position, cell in enumerate(first):
        if not cell:
            continue
        values = [text_of(row[position]) for row in body if position < len(row)]
        few = len(values) >= 8 and len(set(values)) <= len(values) / 4
        if values and (all(NUMBER.fullmatch(value) for value in values) or (few and cell not in values)):
            return len(first) > 1
    return False


def choose_columns(
    names: Sequence[str],
    sample: Sequence[Cells],
    *,
    named: bool,
    labelled: bool,
    source: str,
    given: Columns | None,
) -> Columns:
    """Return what each column holds: as given by the user, else by usual name, else by content.

    Args:
        names: the columns' names, or ``"0"``, ``"1"``, ... without a header.
        sample: the first rows, without the header.
        named: whether ``names`` come from the file.
        labelled: whether a label is needed; without, a label column is only looked at when given.
        source: the file's name for errors.
        given: what the user named; an empty ``text`` means that it is to be guessed.
    """
    asked = given or Columns(text="")
    for option, name in (("text", asked.text), ("text-pair", asked.text_pair), ("label", asked.label)):
        if name and name not in names:
            kind = "" if named else " (no header: columns are counted from 0)"
            inner = [known for known in names if known.startswith(f"{name}.")]
            raise CompressError(
                f"{source} has no column {name!r}; it has {some_of(inner or names)}{kind}: "
                f"name one of them with --{option}-column.{did_you_mean(name, names)}"
            )
    text, pair, label = asked.text, asked.text_pair, asked.label
    words = next((name for known in WORDS for name in names if usual(name) == known), None)
    if not text and named and words is not None:
        tags = _tags_of(names, sample, words)
        if tags and (label is None or label in tags):
            text, label = words, label or (tags[0] if labelled and len(tags) == 1 else None)
    if not text:
        guessed = (_texts_by_name(names) if named else None) or _texts_by_content(names, sample, asked, named)
        if guessed is None:
            raise CompressError(
                f"{source} has the columns {some_of(names)}, none of which is clearly the text: "
                f"name one with --text-column{_such_as(names, sample)}."
            )
        text, pair = guessed[0], pair or guessed[1]
    _refuse_twice(names, (text, pair), source)
    if label is None and labelled:
        used = {text, pair}
        label = (_label_by_name(names, used) if named else None) or _label_by_content(names, sample, used, named)
        if label is None:
            raise CompressError(
                f"{source} has the columns {some_of(names)}, none of which is clearly the label that is "
                f"needed here: name one with --label-column{_such_as(names, sample)}."
            )
    _refuse_twice(names, (label,), source)
    chosen = [name for name in (text, pair, label) if name is not None]
    if len(set(chosen)) < len(chosen):
        raise CompressError(
            f"{source}: the same column cannot be text, pair and label at once (text = {text}, pair = {pair}, "
            f"label = {label}): name different ones of {some_of(names)}."
        )
    return Columns(text, pair, label)


def _refuse_twice(names: Sequence[str], chosen: Iterable[str | None], source: str) -> None:
    twice = next((name for name in chosen if name is not None and names.count(name) > 1), None)
    if twice is not None:
        raise CompressError(f"{source} has two columns {twice!r}: rename one of them.")


def _such_as(names: Sequence[str], sample: Sequence[Cells]) -> str:
    """Name what lists of the first row hold, as chat records and annotations have it."""
    inner = [path for name, value in zip(names, sample[0], strict=False) for path in inner_fields(name, value)]
    return f", also a part of one: {some_of(inner)}" if inner else ""


def _tags_of(names: Sequence[str], sample: Sequence[Cells], words: str) -> list[str]:
    """Return the columns that have a list of as many items as there are words, in all sampled rows with words."""
    place = names.index(words)
    rows = [row for row in sample if isinstance(row[place], list)]
    return [
        name
        for position, name in enumerate(names)
        if position != place and rows and all(_size(row[position]) == _size(row[place]) for row in rows)
    ]


def _size(value: Cell) -> int:
    return len(value) if isinstance(value, list) else -1


def are_tagged(names: Sequence[str], sample: Sequence[Cells], columns: Columns, labelled: bool) -> bool:
    """Tell whether the text is lists of words, and the label, where one is needed, lists of their tags."""
    texts = [row[names.index(columns.text)] for row in sample]
    worded = usual(columns.text) in WORDS
    if not labelled or columns.label is None:
        return worded and any(isinstance(text, list) for text in texts)
    labels = [row[names.index(columns.label)] for row in sample]
    listed = all(isinstance(text, list) for text in texts) and any(_size(text) > 1 for text in texts)
    return (worded or listed) and all(isinstance(label, list) for label in labels)


def _texts_by_name(names: Sequence[str]) -> tuple[str, str | None] | None:
    known = {usual(name): name for name in names}
    for first, second in TEXT_PAIRS:
        if first in known and second in known:
            return known[first], known[second]
    return next(((known[name], None) for name in TEXT_COLUMNS if name in known), None)


def _label_by_name(names: Sequence[str], used: set[str | None]) -> str | None:
    known = {usual(name): name for name in names if name not in used}
    return next((known[name] for name in LABELS if name in known), None)


@dataclass(frozen=True)
class _Profile:
    """What the sampled values of one column look like."""

    name: str
    words: float  # mean number of words in a value
    distinct: float  # different values per row
    filled: float  # share of rows with a value
    numeric: bool
    fractions: bool


def _profile(name: str, cells: Sequence[Cell]) -> _Profile | None:
    """Return None for a column of lists or objects that are neither texts nor labels."""
    try:
        values = [text_of(label_of(cell) if isinstance(cell, list) and len(cell) == 1 else cell) for cell in cells]
    except StructureError:
        return None
    filled = [value for value in values if value.strip()]
    rows = max(1, len(values))
    numeric = bool(filled) and all(NUMBER.fullmatch(value) for value in filled)
    return _Profile(
        name=name,
        words=sum(len(value.split()) for value in filled) / max(1, len(filled)),
        distinct=len(set(filled)) / rows,
        filled=len(filled) / rows,
        numeric=numeric,
        fractions=numeric and any("." in value for value in filled),
    )


def _profiles(names: Sequence[str], sample: Sequence[Cells], used: set[str | None]) -> list[_Profile]:
    found = (
        _profile(name, [row[position] if position < len(row) else None for row in sample])
        for position, name in enumerate(names)
        if name not in used
    )
    return [profile for profile in found if profile is not None]


def _texts_by_content(
    names: Sequence[str], sample: Sequence[Cells], asked: Columns, named: bool
) -> tuple[str, str | None] | None:
    profiles = _profiles(names, sample, {asked.text_pair, asked.label})
    prose = [p for p in profiles if not p.numeric and p.words >= 2 and (p.distinct > 0.3 or len(sample) < 4)]
    if not prose:
        only = [p for p in profiles if not p.numeric and p.filled > 0 and not (named and usual(p.name) in LABELS)]
        return (only[0].name, None) if len(only) == 1 else None
    # A title beside a description is no pair of equals: the longest is the text, its equals may be its pair.
    longest = max(p.words for p in prose)
    equals = [p.name for p in prose if p.words >= longest / 3]
    if len(equals) == 1:
        return equals[0], None
    if len(equals) == 2 and not named:
        return equals[0], equals[1]
    return None


def _label_by_content(names: Sequence[str], sample: Sequence[Cells], used: set[str | None], named: bool) -> str | None:
    candidates = [p for p in _profiles(names, sample, used) if p.filled > 0.99 and usual(p.name) not in _IDS]
    rows = len(sample)
    repeated = [p for p in candidates if p.fractions or 1 <= p.distinct * rows <= max(2, rows / 2)]
    if not repeated:
        # With few rows, or one row a class, the only column left is the label all the same.
        return candidates[0].name if len(candidates) == 1 and rows <= 20 else None
    if named and len(repeated) > 1:
        return None
    # A column that never changes comes last; scores before classes, numbers before names, few before many.
    best = min(repeated, key=lambda p: (p.distinct * rows <= 1, not p.fractions, not p.numeric, p.distinct))
    return best.name
