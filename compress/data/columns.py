"""Cells and columns of tables: which column is the text, which the label, and what a cell holds.

A cell is text, None, or a list or an object as a record holds it. Structure is no text: only lists of words or segments
are joined. A list of labels stays one, of one label too: whether a text has several is for a model's task to say.
"""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from compress.data.entity_spans import COLUMNS
from compress.data.examples import NUMBER, Columns
from compress.errors import CompressError, did_you_mean, refuse, some_of

Cell: TypeAlias = "str | list[Any] | Mapping[str, Any] | None"
Cells: TypeAlias = Sequence[Cell]
Classes: TypeAlias = Mapping[str, tuple[str, ...]]  # by column, the names of the integers that it holds
_MOST_FIELDS, _MOST_LEVELS = 50, 4  # an object of more fields is a dictionary and no record
_NESTED_ROWS = 20  # rows whose objects are looked into for their fields
_SURROGATE = re.compile("[\ud800-\udfff]")

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
    *COLUMNS,  # of spans
)
WORDS = ("words", "tokens")  # lists, each word with a tag
_IDS = {"id", "idx", "index", "guid", "uid", "#1_id", "#2_id", "source", "url", "date"}
_USUAL = {name for pair in TEXT_PAIRS for name in pair} | set(TEXT_COLUMNS) | set(LABELS)
_IDENTIFIER = re.compile(r"(?!\d)[\w#][\w#./ -]{0,39}")


class Several(list[Any]):
    """The items of a list where a dotted path does not say which of them it means; ``path`` leads to the list."""

    path = ""


class StructureError(ValueError):
    """A cell is not what it should be; says what it is, maybe in which column, and whether other rows are right."""

    def __init__(self, said: str, column: str = "", of_row: bool = False) -> None:
        super().__init__(said)
        self.column, self.of_row = column, of_row


def cell(value: Any, names: Sequence[str] = ()) -> Cell:
    """Return a value of JSON or Parquet as a cell; integers by their ``names``, if they have any, and -1 as None."""
    if isinstance(value, list) and names:
        return [cell(one, names) for one in value]
    if value is None or isinstance(value, (str, list, Mapping)):
        return _whole(value) if isinstance(value, str) else value
    if isinstance(value, float) and math.isnan(value):  # how pandas and polars write that there is none
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if names and isinstance(value, int) and -1 <= value < len(names):
        return None if value < 0 else names[value]
    return str(value)


def _whole(text: str) -> str:
    """Replace halves of characters, which JSON can spell; no tokenizer and no file can hold them."""
    if _SURROGATE.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def text_of(value: Cell) -> str:
    """Return a cell as text, with lists of words and of segments joined.

    Raises:
        StructureError: it is another list, or an object.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return _whole(" ".join(value))
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in value]
        if all(isinstance(part, str) for part in parts):
            return _whole("".join(map(str, parts)).strip())
    raise StructureError(f"{_shown(value)}, which is no text")


def label_of(value: Cell) -> str | None:
    """Return the only label of a cell: of a list its only item, of an object of ones and zeros what has the one.

    Raises:
        StructureError: it holds several, or something else.
    """
    found: Any = value
    while isinstance(found, list) and len(found) == 1:
        (found,) = found
    shares = list(found.values()) if isinstance(found, Mapping) else []
    if len(shares) > 1 and sum(one == 1 for one in shares) == 1 == len(shares) - sum(one == 0 for one in shares):
        found = next(name for name, share in found.items() if share)
    if isinstance(found, (list, Mapping)) and found:
        raise StructureError(f"{_shown(found)}, and a text has one label here")
    return None if isinstance(found, (list, Mapping)) else text_of(cell(found))


class RowLabels(NamedTuple):
    """What the label cell of a row holds: one label, a set of them, or of a list with one item both."""

    label: str | None = None
    labels: tuple[str, ...] | None = None


class LabelReader(NamedTuple):
    read: Callable[[Cells], RowLabels]
    several: bool  # whether sampled rows have several labels, or none; what a row has, its own cell tells


def label_reader(names: Sequence[str], sample: Sequence[Cells], columns: Columns, separator: str) -> LabelReader | None:
    """Return what reads the labels of rows; None without a label column.

    Sets of labels are columns of 0 and 1 (``columns.each``), text cut at a ``separator``, lists, objects of ones and
    zeros, or vectors of these: where all sampled lists hold only 0 and 1, and one has two items or more. A list of one
    label can be the label of a classifier too.
    """
    if columns.label is None:
        return None
    places = {name: names.index(name) for name in columns.each or (columns.label,)}
    at = places[columns.label]
    if columns.each:
        return LabelReader(
            lambda cells: RowLabels(None, tuple(one for one, place in places.items() if _is_one(cells[place], one))),
            True,
        )
    found: list[Any] = [row[at] for row in sample if at < len(row) and row[at] is not None]
    lists = [value for value in found if isinstance(value, list)]
    sizes = Counter(len(value) for value in lists if len(value) > 1)
    size = sizes.most_common(1)[0][0] if sizes and all(_BITS.issuperset(map(str, value)) for value in lists) else 0
    several = bool(separator or size) or any(
        len(one) != 1 and not isinstance(one, Several)
        if isinstance(one, list)
        else _has_bits(one) and sum(one.values()) != 1
        for one in found
    )
    if separator:
        return LabelReader(lambda cells: RowLabels(None, _cut(cells[at], separator, size)), True)
    texts = sum(isinstance(value, str) for value in found)
    if not found or texts >= (len(found) / 2 if several else 1):
        return LabelReader(lambda cells: RowLabels((label_of(cells[at]) or "").strip()), False)
    named = any(isinstance(part, str) for value in lists for part in value)
    bits = any(isinstance(value, Mapping) and _has_bits(value) for value in found)
    return LabelReader(lambda cells: _row_labels(cells[at], size, named, bits), several)


_BITS = frozenset(("0", "1", "0.0", "1.0", "False", "True"))  # what vectors are made of, in JSON too


def _cut(value: Cell, separator: str, size: int) -> tuple[str, ...] | None:
    if isinstance(value, list | Mapping):
        return _row_labels(value, size).labels
    return None if value is None else _different(value.split(separator))


def _row_labels(value: Cell, size: int = 0, named: bool = False, bits: bool = False) -> RowLabels:
    """Return the labels of a cell, in a list of zeros and ones of ``size`` their numbers.

    Other rows have lists of names where ``named``, and objects of ``bits``.

    Raises:
        StructureError: a list or an object holds no labels.
    """
    if isinstance(value, list) and size:
        if len(value) != size or not _BITS.issuperset(map(str, value)):
            raise StructureError(f"{_shown(value)}, and other rows have a vector of {size} zeros and ones", of_row=True)
        return RowLabels(None, tuple(str(number) for number, one in enumerate(value) if _is_one(str(one))))
    if isinstance(value, list) and not isinstance(value, Several) and _scalars(value):
        if named and not all(isinstance(part, str) for part in value):
            raise StructureError(f"{_shown(value)}, and other rows have names of labels", of_row=True)
        labels = _different(part if isinstance(part, str) else str(cell(part)) for part in value)
        if value and not labels:
            return RowLabels()
    elif isinstance(value, Mapping) and _has_bits(value):
        labels = _different(name for name, share in value.items() if share)
    elif isinstance(value, Mapping) and bits:
        raise StructureError(f"{_shown(value)}, and other rows have 0 or 1 for each label", of_row=True)
    else:
        if isinstance(value, str):
            raise StructureError(
                f"{value!s:.60}, and other rows have a list of labels, which may be empty", of_row=True
            )
        parts = value if isinstance(value, list) and not isinstance(value, Several) else []
        if len(parts) > 1 and not any(isinstance(part, Mapping) for part in parts):
            raise StructureError(f"{_shown(value)}, and labels in a list are texts or whole numbers")
        return RowLabels((label_of(value) or "").strip())
    return RowLabels(labels[0] if len(labels) == 1 else None, labels)


def _different(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in map(str.strip, names) if name))


def _scalars(value: Sequence[Any]) -> bool:
    return all(isinstance(part, str | int) or (isinstance(part, float) and part in (0, 1)) for part in value)


def _is_one(value: Cell, column: str = "") -> bool:
    known = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
    text = value.strip().casefold() if isinstance(value, str) else ""
    if text not in known:
        raise StructureError(
            f"{value!r:.60}, and the column of one of several labels holds 0 or 1", column, of_row=True
        )
    return known[text]


def words_of(value: Cell) -> list[str]:
    """Return a list of words, or of tags, as text.

    Raises:
        StructureError: it is no list, or holds something that is neither a word nor a number.
    """
    found = [part if isinstance(part, str) else cell(part) for part in value] if isinstance(value, list) else [None]
    if not all(isinstance(part, str) and part.strip() for part in found):
        raise StructureError(f"{_shown(value)}, and needs a list of words and one of tags")
    return [_whole(str(part)) for part in found]


def at(value: Any, path: str) -> Any:
    """Return what stands at a dotted path: names of fields, and places in lists from 0; None where nothing does.

    A list of one item is stepped into; one of several is a :class:`Several` where the path does not say which of them.
    """
    if isinstance(value, Mapping) and path in value:
        return value[path]
    parts = path.split(".")
    for number, part in enumerate(parts):
        place = part.isdecimal() and len(part) < 10
        while isinstance(value, list) and len(value) == 1 and not place:
            (value,) = value
        if isinstance(value, list):
            if not place:
                several = Several(value)
                several.path = ".".join(parts[:number])
                return several
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def field_names(records: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of records: fields, those of objects by dotted paths, and ``wanted`` paths with values."""
    found: dict[str, dict[str, None]] = {}
    for number, record in enumerate(records):
        for key, value in record.items():
            if key not in found or (number < _NESTED_ROWS and value is not None):
                paths = () if value is None else _inner(key, value, _MOST_LEVELS)
                found.setdefault(key, {}).update(dict.fromkeys(paths))
    for key in [key for key, paths in found.items() if len(paths) > 1 and usual(key) in LABELS]:
        objects = [record[key] for record in records[:_NESTED_ROWS] if record.get(key) is not None]
        if sum(map(_has_bits, objects)) > len(objects) / 2:  # labels and no record, also where a row is wrong
            found[key] = {}
    names = dict.fromkeys(path for key, paths in found.items() for path in paths or [key])
    names |= dict.fromkeys(path for path in wanted if any(at(record, path) is not None for record in records))
    return tuple(names)


def _has_bits(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(share in (0, 1) for share in value.values()))


def _inner(name: str, value: Any, levels: int, lists: bool = False) -> Iterator[str]:
    """Yield the paths of the fields of an object, of ``lists`` those of their items too; of another value its own."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping) or (lists and isinstance(value, list)):
        pairs = list(value.items() if isinstance(value, Mapping) else enumerate(value))
    if not levels or not 0 < len(pairs) <= _MOST_FIELDS:
        yield name
        return
    for key, inner in pairs:
        yield from _inner(f"{name}.{key}", inner, levels - 1, lists)


def inner_fields(name: str, value: Cell) -> list[str]:
    """Return the paths of what a structured cell holds, such as ``messages.0.content``; none of other cells."""
    name = value.path if isinstance(value, Several) else name
    return [path for path in _inner(name, value, _MOST_LEVELS, lists=True) if path != name]


def class_names(features: Any, prefix: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the columns of classes among the features of the library ``datasets``, with the names of their integers."""
    if isinstance(features, list) and len(features) == 1:
        (features,) = features
    kind = features.get("_type") if isinstance(features, Mapping) else ""
    if kind in ("Sequence", "List", "LargeList"):
        yield from class_names(features.get("feature"), prefix)
    elif kind == "ClassLabel" and isinstance(names := features.get("names"), list):
        yield prefix, tuple(_whole(str(name)).strip() for name in names)
    elif not isinstance(kind, str):
        for key, inner in features.items():
            yield from class_names(inner, f"{prefix}.{key}" if prefix else key)


def _shown(value: Any) -> str:
    kind = f"a list of {len(value)}" if isinstance(value, list) else "text"
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return f"{'an object' if isinstance(value, Mapping) else kind} ({shown:.60})"


class Dialect(NamedTuple):
    delimiter: str
    quoted: bool


def usual(name: str) -> str:
    """Return a column name as the lists of usual names spell it."""
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def csv_rows(lines: Iterable[str], dialect: Dialect) -> "csv._reader":  # type: ignore[name-defined]
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
    columns = [[text_of(row[place]).strip() for row in rows[1:] if place < len(row)] for place in range(len(first))]
    if known:  # unless many rows have it again, such as the class "question"
        return columns[known[0]].count(first[known[0]]) <= len(columns[known[0]]) / 10
    return len(first) > 1 and any(
        values
        and (
            all(map(NUMBER.fullmatch, values))
            or (len(values) >= 8 and len(set(values)) <= len(values) / 4 and cell not in values)
        )
        for cell, values in zip(first, columns, strict=True)
        if cell
    )


def choose_columns(
    names: Sequence[str],
    sample: Sequence[Cells],
    *,
    named: bool,
    labelled: bool,
    source: str,
    given: Columns,
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
    options = (("text", given.text), ("text-pair", given.text_pair), ("label", given.label))
    for option, name in (*options, *(("label", name) for name in given.each)):
        if name and name not in names:
            kind = "" if named else " (no header: columns are counted from 0)"
            inner = [known for known in names if known.startswith(f"{name}.")]
            raise CompressError(
                f"{source} has no column {name!r}; it has {some_of(inner or names)}{kind}: "
                f"name one of them with --{option}-column.{did_you_mean(name, names)}"
            )
    inner = [path for name, value in zip(names, sample[0], strict=False) for path in inner_fields(name, value)]
    such_as = f", also a part of one: {some_of(inner)}" if inner else ""  # of chat records and annotations
    unclear = f"{source} has the columns {some_of(names)}, none of which is clearly"
    known = {usual(name): name for name in names} if named else {}
    text, pair, label = given.text, given.text_pair, given.label
    words = next((known[name] for name in WORDS if name in known), "")
    tags = _tags_of(names, sample, words) if words else []
    if not text and tags and (label is None or label in tags):
        text, label = words, label or (tags[0] if labelled and len(tags) == 1 else None)
    if not text:
        pairs = [(known[one], known[other]) for one, other in TEXT_PAIRS if one in known and other in known]
        singles = [(known[name], None) for name in TEXT_COLUMNS if name in known]
        text, other = (pairs or singles or [_texts_by_content(names, sample, given, named)])[0]
        refuse((not text, f"{unclear} the text: name one with --text-column{such_as}."))
        pair = pair or other
    another = "" if given.text else _other_text(names, sample, text)
    refuse((another, f"{source} has its texts in the columns {text} and {another}: write all in one of them."))
    used = {text, pair}
    _refuse_twice(names, used, source)
    if label is None and labelled:
        label = next((known[name] for name in LABELS if known.get(name, text) not in used), None)
        label = label or _label_by_content(names, sample, used, named)
        refuse((label is None, f"{unclear} the label that is needed here: name one with --label-column{such_as}."))
    _refuse_twice(names, {label}, source)
    chosen = [name for name in (text, pair, *(given.each or (label,))) if name is not None]
    refuse(
        (
            len(set(chosen)) < len(chosen),
            f"{source}: the same column cannot be text, pair and label at once (text = {text}, pair = {pair}, "
            f"label = {label}): name different ones of {some_of(names)}.",
        )
    )
    return Columns(text, pair, label, given.each)


def _other_text(names: Sequence[str], sample: Sequence[Cells], text: str) -> str:
    """Return the usual column of texts that has one in each row without one in ``text``, and in no other."""
    place = names.index(text)
    have = [[value not in (None, "") for value in row] for row in sample if len(row) == len(names)]
    others = [at for at, name in enumerate(names) if usual(name) in {*TEXT_COLUMNS, *WORDS} and at != place]
    is_short = any(not row[place] for row in have)
    return next((names[at] for at in others if is_short and all(row[at] != row[place] for row in have)), "")


def _refuse_twice(names: Sequence[str], chosen: Iterable[str | None], source: str) -> None:
    twice = [name for name in chosen if name is not None and names.count(name) > 1]
    refuse((twice, f"{source} has two columns {''.join(twice[:1])!r}: rename one of them."))


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


class _Profile(NamedTuple):
    """What the sampled values of one column look like."""

    name: str
    words: float  # mean number of words in a value
    distinct: float  # different values per row
    filled: float  # share of rows with a value
    numeric: bool
    fractions: bool


def _profiles(names: Sequence[str], sample: Sequence[Cells], used: set[str | None]) -> list[_Profile]:
    """Return those of the columns that are not used, but for lists or objects that are neither texts nor labels."""
    found, rows = list[_Profile](), max(1, len(sample))
    for position, name in [(position, name) for position, name in enumerate(names) if name not in used]:
        cells = [row[position] if position < len(row) else None for row in sample]
        try:
            values = [text_of(label_of(cell) if isinstance(cell, list) and len(cell) == 1 else cell) for cell in cells]
        except StructureError:
            continue
        filled = [value for value in values if value.strip()]
        numeric = bool(filled) and all(NUMBER.fullmatch(value) for value in filled)
        found.append(
            _Profile(
                name,
                words=sum(len(value.split()) for value in filled) / max(1, len(filled)),
                distinct=len(set(filled)) / rows,
                filled=len(filled) / rows,
                numeric=numeric,
                fractions=numeric and any("." in value for value in filled),
            )
        )
    return found


def _texts_by_content(
    names: Sequence[str], sample: Sequence[Cells], given: Columns, named: bool
) -> tuple[str, str | None]:
    """Return the text and maybe its pair; an empty name where none is clearly the text."""
    profiles = _profiles(names, sample, {given.text_pair, given.label})
    prose = [p for p in profiles if not p.numeric and p.words >= 2 and (p.distinct > 0.3 or len(sample) < 4)]
    # A title beside a description is no pair of equals: the longest is the text, its equals may be its pair.
    longest = max((p.words for p in prose), default=0)
    equals = [p.name for p in prose if p.words >= longest / 3]
    if not prose:
        equals = [
            p.name for p in profiles if not p.numeric and p.filled > 0 and not (named and usual(p.name) in LABELS)
        ]
    if len(equals) == 2 and prose and not named:
        return equals[0], equals[1]
    return equals[0] if len(equals) == 1 else "", None


def _label_by_content(names: Sequence[str], sample: Sequence[Cells], used: set[str | None], named: bool) -> str | None:
    rows = len(sample)
    candidates = [p for p in _profiles(names, sample, used) if p.filled > 0.99 and usual(p.name) not in _IDS]
    repeated = [p for p in candidates if p.fractions or 1 <= p.distinct * rows <= max(2, rows / 2)]
    if not repeated:
        # With few rows, or one row a class, the only column left is the label all the same.
        return candidates[0].name if len(candidates) == 1 and rows <= 20 else None
    if named and len(repeated) > 1:
        return None
    # A column that never changes comes last; scores before classes, numbers before names, few before many.
    return min(repeated, key=lambda p: (p.distinct * rows <= 1, not p.fractions, not p.numeric, p.distinct)).name
