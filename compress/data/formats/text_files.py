"""Text files: find out their format, and read JSON, CSV, TSV and formats of one line a row or one line a word.

JSON has many shapes: rows, ids with rows, splits with rows, columns, or labels with rows.

Plain text: a text a line; labels from ``X_labels.txt`` beside ``X_text.txt``, or from a numeric suffix.

Label first: TREC, fastText (``__label__``) and sentence polarity files.

Trees of SST: the leaves are the sentence, the number of the root its label.

CoNLL-U: the words (column 2) with their universal parts of speech (column 4), an empty line after each sentence. The
surface form of a contraction (``1-2``) is skipped for its words, and so are the empty nodes of enhanced dependencies
(``1.1``). https://universaldependencies.org/format.html

CoNLL: the word in the first column and its tag in the last, with tabs or spaces between, as in CoNLL-2003 and WNUT-17.
Where words are numbered from 1 in each sentence, the word is in the second column, as in Universal NER. A document may
begin with ``-DOCSTART-``, and lines such as ``# text = ...`` are comments.
https://www.clips.uantwerpen.be/conll2003/ner/
"""

import csv
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from compress.data.columns import LABELS, TEXT_COLUMNS, Dialect, csv_rows, has_header, sniff_dialect, usual
from compress.data.formats.table import Lines, Row, Table, open_bytes, records_table, sampled
from compress.errors import CompressError, refuse
from compress.files import JSON_DATA_BYTES, parse_json, printable_name, text_limit_bytes, too_long

FORMATS: Mapping[str, str] = {  # what a user types -> what it is called
    "csv": "CSV",
    "tsv": "TSV",
    "tsv-unquoted": "TSV without quoting",
    "jsonl": "JSON Lines",
    "json": "JSON",
    "parquet": "Parquet",
    "text": "plain text",
    "label-first": "label first",
    "trees": "trees",
    "conllu": "CoNLL-U",
    "conll": "CoNLL",
}
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "validate", "val", "dev"),
    "test": ("test",),
    "unlabeled": ("unlabeled", "unlabelled", "unsupervised", "unsup", "pool"),
}
_WRAPPERS = ("data", "examples", "rows", "items")
_EXCEL = re.compile(r'"?sep=.?"?', re.IGNORECASE)
LONGEST_SENTENCE = 100_000
_LABEL_FIRST = re.compile(r"(-?\d+|__label__\S+) +(.*)")
_TREE = re.compile(r"\(\d+ .*\)\s*")
_LEAF = re.compile(r"\([^\s()]+ ([^()]+)\)")
# Lines whose last column is a tag of a named entity, inside, outside or at its beginning.
_CONLL = re.compile(r"-DOCSTART-.*\s*|\S+([ \t]\S*){0,3}[ \t](O|[BIESLU]-\S+)\s*")
_COMMENT = re.compile(r"# ?[\w:. ]+ = .*\s*")
_NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")

csv.field_size_limit(2**31 - 1)  # rows are bounded where they are read; the default stops at 128 KiB a cell


def read_table(
    path: Path, *, role: str, labelled: bool, format: str | None = None, wanted: Sequence[str] = ()
) -> Table:
    """Open one file as a table, finding out its format by content and suffix unless it is given.

    Args:
        path: the file.
        role: which part to read where a file holds several splits.
        labelled: whether labels are needed; they may be in a second file (``X_labels.txt``) or in the
            file's suffix.
        format: one of ``FORMATS``.
        wanted: column names that the user gave; the first row is a header if it holds one.
    """
    refuse((format not in (None, *FORMATS), f"There is no format {format!r}: use one of {', '.join(FORMATS)}."))
    with open_bytes(path) as stream:
        magic = stream.read(4)
    if format == "parquet" or (format is None and magic == b"PAR1"):
        from compress.data.formats.parquet import read_parquet

        return read_parquet(path, wanted)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    may_be_json = (format or suffix.removeprefix(".")) in ("json", "")  # which may be a single line
    lines = Lines(path, max(JSON_DATA_BYTES, text_limit_bytes()) if may_be_json else None)
    with closing(cast(Any, iter(lines))) as start:
        head = sampled(start, len)
    refuse((not any(line.strip() for line in head), f"{lines.name} is empty: give a file with at least one row."))
    kind = format or _sniff_format(head, suffix)
    if kind != "json":
        lines.longest = text_limit_bytes()
        refuse(
            (
                len(head) == 1 and "\r" in head[0].strip(),
                f"{lines.name} ends its lines with CR alone: write it with LF or CRLF.",
            )
        )
    if kind == "json":
        table = read_json_file(lines, role, wanted)
    elif kind == "jsonl":
        table = read_json_lines(lines, wanted)
    elif kind in ("csv", "tsv", "tsv-unquoted", "table"):
        table = _delimited(lines, head, suffix, kind, wanted)
    else:
        table = _LINE_FORMATS[kind](lines, labelled)
    table.identity = table.identity or frozenset({printable_name(path.resolve())})
    table.notes = lines.notes
    table.unit = "row" if kind == "json" else "line"
    return table


def _sniff_format(head: list[str], suffix: str) -> str:
    full = [line for line in head if line.strip()]
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if suffix in (".json", ""):
        start = full[0].lstrip()[0]
        if suffix == ".json" or start in "[{":
            one_each = len(full) > 1 and all(line.strip()[0] + line.strip()[-1] == "{}" for line in full)
            return "jsonl" if one_each else "json"
    if suffix in (".conllu", ".conll"):
        return suffix[1:]
    words = [line for line in full if not _COMMENT.fullmatch(line)]
    if suffix != ".csv" and words and all(map(_CONLL.fullmatch, words)):
        return "conll"
    if suffix not in (".csv", ".tsv"):
        if all(_TREE.fullmatch(line) for line in full):
            return "trees"
        firsts = {match and match[1] for match in (_LABEL_FIRST.fullmatch(line.rstrip("\n")) for line in full)}
        if all(firsts) and len(firsts) <= max(2, len(full) / 10):
            return "label-first"
    return "table" if sniff_dialect(head, suffix) else "text"


def split_of(name: str) -> str | None:
    """Return the split that a file or key is named after: ``oos_val`` and ``dev`` are ``validation``."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return next((split for split, names in SPLITS.items() if words & set(names)), None)


def read_json_lines(lines: Lines, wanted: Sequence[str]) -> Table:
    """One JSON object (or array of cells, or string) a line."""

    def records() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, parse_json(line, f"{lines.name}, line {number}", halves=True)

    return records_table(lines.name, "jsonl", records, wanted)


def read_json_file(lines: Lines, role: str, wanted: Sequence[str]) -> Table:
    """A whole JSON file; of one with splits the role picks its own.

    Keys such as ``oos_train`` belong to the split that they name, so that CLINC150 keeps its out-of-scope questions as
    the class they are labelled with.
    """
    name, text = lines.name, list[str]()
    left = lines.longest
    for line in lines:
        left -= len(line)
        if left < 0:
            raise CompressError(
                f"{name} has more than {lines.longest:,} characters, and JSON is read whole: convert it to JSON Lines."
            )
        text.append(line)
    content = parse_json("".join(text), name, halves=True)
    while isinstance(content, dict) and len(content) == 1 and next(iter(content)) in _WRAPPERS:
        content = next(iter(content.values()))
    keys = list[str]()
    if isinstance(content, dict) and all(isinstance(rows, list) for rows in content.values()):
        if all(map(split_of, content)):
            keys = [key for key in content if split_of(key) == role]
            if role == "unlabeled":
                keys = keys or [key for key in content if split_of(key) == "train"]
            refuse((content and not keys, f"{name} has the splits {', '.join(content)}, but none for the role {role}."))
        content = _of_lists(name, content, keys)
    elif isinstance(content, dict) and all(isinstance(value, dict) for value in content.values()):
        columns = list(content.values())
        numbered = all(column.keys() == columns[0].keys() and all(map(str.isdigit, column)) for column in columns)
        is_frame = numbered and any(usual(key) in TEXT_COLUMNS for key in content)  # as pandas writes one
        content = [{key: cells[row] for key, cells in content.items()} for row in columns[0]] if is_frame else columns
    if not isinstance(content, list) or not content:
        raise CompressError(
            f"{name} holds no rows: give a list of objects, or an object of ids, splits or labels with rows."
        )
    form = f"json, split {' + '.join(keys)}" if keys else "json"
    place = printable_name(f"{lines.path.resolve()}#{'+'.join(keys)}")
    return records_table(name, form, lambda: enumerate(content, start=1), wanted, place=place)


def _of_lists(name: str, content: dict[str, list[Any]], splits: Sequence[str]) -> list[Any]:
    """Return the rows of some splits, of columns, or of labels with their texts."""
    if splits:
        return [row for key in splits for row in content[key]]
    if any(usual(key) in TEXT_COLUMNS for key in content):
        refuse(
            (
                len(set(map(len, content.values()))) > 1,
                f"{name} has columns of different lengths: give each a cell a row.",
            )
        )
        return [dict(zip(content, row, strict=True)) for row in zip(*content.values(), strict=True)]
    rows = [(record, label) for label, records in content.items() for record in records]
    sound = (  # a text, or an object that names no other label
        isinstance(record, str)
        or (isinstance(record, dict) and all(value == label for key, value in record.items() if usual(key) in LABELS))
        for record, label in rows
    )
    refuse(
        (
            not all(sound),
            f"{name} holds the lists {', '.join(content)[:200]}, which are no splits, no columns and no "
            "labels with their texts: give the list of rows alone.",
        )
    )
    return [{**_row_of_record(record), "label": label} for record, label in rows]


def _row_of_record(record: Any) -> dict[str, Any]:
    """Return the text of a record and, of the segments of SNIPS, the spans of those that are entities."""
    fields = record if isinstance(record, dict) else {}
    text = next((value for key, value in fields.items() if usual(key) in (*TEXT_COLUMNS, "data")), None)
    parts = text if isinstance(text, list) and all(isinstance(part, dict) for part in text) else []
    texts = [part.get("text") for part in parts]
    if not parts or not all(isinstance(part, str) for part in texts):
        return {"text": record if text is None else text}  # an object is no text, and is refused with its row
    spans = [
        {"start": end - len(said), "end": end, "label": part["entity"]}
        for part, said, end in zip(parts, texts, itertools.accumulate(map(len, texts)), strict=True)
        if "entity" in part and said.strip()
    ]
    return {"text": "".join(texts), "entities": spans}


def _delimited(lines: Lines, head: list[str], suffix: str, kind: str, wanted: Sequence[str]) -> Table:
    name = lines.name
    if kind in ("tsv", "tsv-unquoted"):
        dialect = Dialect("\t", quoted=kind == "tsv")
    else:  # of a ".csv", or of what was found to be a table
        dialect = cast(Dialect, sniff_dialect(head, ".csv" if kind == "csv" else suffix))
    refuse(
        (
            _EXCEL.fullmatch(head[0].strip()),
            f"{name} begins with a line for Excel, {head[0].strip()!r}: delete that line.",
        )
    )

    def raw() -> Iterator[tuple[int, list[str]]]:
        longest = lines.longest
        left = longest  # of a row, which may have many lines

        def counted() -> Iterator[str]:
            nonlocal left
            for line in lines:
                left -= len(line)
                if left < 0:
                    raise too_long(f"{name}, the row with line {reader.line_num + 1}", longest)
                yield line

        reader, first = csv_rows(counted(), dialect), 1
        try:
            for cells in reader:
                left = longest
                if cells:
                    yield first, cells
                first = reader.line_num + 1
        except csv.Error as error:
            other = " or say --format tsv-unquoted" if dialect.delimiter == "\t" else ""
            raise CompressError(
                f"{name}, line {reader.line_num}: {error}; correct the quotation marks{other}."
            ) from None

    with closing(cast(Any, raw())) as start:
        sample = sampled((cells for _, cells in start), lambda cells: sum(map(len, cells)))
    named = has_header(sample, wanted)
    width = len(sample[0]) if named else min(len(cells) for cells in sample)
    columns = tuple(cell.strip() for cell in sample[0]) if named else tuple(map(str, range(width)))

    def rows() -> Iterator[Row]:
        del lines.notes["rows with extra cells"]
        for line, cells in itertools.islice(raw(), int(named), None):
            if len(cells) < width or (named and len(cells) > width):
                raise CompressError(
                    f"{name}, line {line} has {len(cells)} cells, but {'the header' if named else 'line 1'} "
                    f"has {width}: correct that line, or say how the file is written with --format."
                )
            if len(cells) > width:
                # Without a header nothing says how wide a row may be: the last rows of STS-B have two more.
                lines.notes["rows with extra cells"] += 1
            yield line, cells

    shown = "csv" if dialect.delimiter in ",;" else "tsv" if dialect.quoted else "tsv-unquoted"
    return Table(name, shown, columns, rows, named=named)


def read_plain_text(lines: Lines, labelled: bool) -> Table:
    path = lines.path
    if not labelled:
        return _by_line(lines, "text", lambda number, line: [line], ("text",), blank=True)
    beside = path.with_name(re.sub(r"_text(\.|$)", r"_labels\1", path.name))
    if beside != path and beside.exists():
        labels = Lines(beside)

        def rows() -> Iterator[Row]:
            for number, (text, label) in enumerate(itertools.zip_longest(lines, labels), start=1):
                if text is None or label is None:
                    short, long = (lines, labels) if text is None else (labels, lines)
                    raise CompressError(
                        f"{short.name} ends after {number - 1} lines but {long.name} goes on: they must "
                        "have one line each."
                    )
                yield number, (text.rstrip("\n"), label.strip())

        return Table(lines.name, f"text beside {labels.name}", ("text", "label"), rows, fixed=True)
    label = Path(path.name.removesuffix(".gz")).suffix[1:]
    if label.isdigit():
        return _by_line(lines, f"text of label {label}", lambda number, line: [line, label], blank=True)
    raise CompressError(
        f"{lines.name} is plain text, one text a line, but labels are needed here: give CSV, TSV, JSON "
        "Lines or Parquet with a label column; text without labels is for the --unlabeled of other commands."
    )


def read_label_first(lines: Lines, labelled: bool) -> Table:
    def cells(number: int, line: str) -> list[str]:
        match = _LABEL_FIRST.fullmatch(line)
        if match is None:
            raise CompressError(f"{lines.name}, line {number} does not start with a label and a space: correct it.")
        refuse(
            (
                match[2].startswith("__label__"),
                f"{lines.name}, line {number} has several labels, and a text has one here: keep one of them.",
            )
        )
        return [match[2], match[1].removeprefix("__label__")]

    return _by_line(lines, "label-first", cells)


def read_trees(lines: Lines, labelled: bool) -> Table:
    def cells(number: int, line: str) -> list[str]:
        sound = _TREE.fullmatch(line) and line.count("(") == line.count(")")
        refuse((not sound, f"{lines.name}, line {number} is not a tree such as (3 (2 a) (4 b)): correct it."))
        return [" ".join(_LEAF.findall(line)), line[1 : line.index(" ")]]

    return _by_line(lines, "trees", cells)


def _by_line(
    lines: Lines,
    form: str,
    cells: Callable[[int, str], list[str]],
    columns: tuple[str, ...] = ("text", "label"),
    *,
    blank: bool = False,
) -> Table:
    """Return a table of a row a line, of which ``cells`` returns the cells; ``blank`` lines are rows too."""

    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines, start=1):
            if blank or line.strip():
                yield number, cells(number, line.rstrip("\n"))

    return Table(lines.name, form, columns, rows, fixed=True)


def read_conllu(lines: Lines, labelled: bool) -> Table:
    def word(number: int, line: str) -> tuple[str, str] | None:
        cells = line.rstrip("\n").split("\t")
        if line[0] == "#" or _NO_WORD.fullmatch(cells[0]):
            return None
        if len(cells) < 2 or not cells[0].isdigit() or not cells[1].strip():
            raise CompressError(
                f"{lines.name}, line {number} is not a line of CoNLL-U, which has a number, a word and eight more "
                "cells with tabs between them: correct it."
            )
        tag = cells[3] if labelled and len(cells) > 3 else "_"
        if labelled and tag in ("_", ""):
            raise CompressError(
                f"{lines.name}, line {number} has no tag in its fourth cell, but labels are needed here: give a "
                "treebank with parts of speech; text without is for the --unlabeled of other commands."
            )
        return cells[1], tag

    return _sentences(lines, "conllu", labelled, word)


def read_conll(lines: Lines, labelled: bool) -> Table:
    with closing(cast(Any, iter(lines))) as start:
        head = sampled(start, len)
    at = int(_are_numbered(head))
    sizes: dict[int, int] = {}  # numbers of columns, with the first line that has each

    def word(number: int, line: str) -> tuple[str, str] | None:
        cells = line.rstrip("\n").split("\t") if "\t" in line else line.split()
        if cells[0] == "-DOCSTART-" or _COMMENT.fullmatch(line) or (at and _NO_WORD.fullmatch(cells[0])):
            return None
        sizes.setdefault(len(cells), number)
        (size, first), *others = sizes.items()
        if len(cells) <= at + labelled or not cells[at].strip() or not cells[-1].strip() or (labelled and others):
            needed = f"line {first} has {size}" if others else "a word and, in the last column, its tag are needed"
            raise CompressError(
                f"{lines.name}, line {number} is not a word with its tag: it has {len(cells)} columns, "
                f"{line.strip()!r:.60}, and {needed}: correct it."
            )
        return cells[at], cells[-1].strip()

    return _sentences(lines, "conll", labelled, word)


def _are_numbered(lines: Sequence[str]) -> bool:
    """Tell whether the first column of the first sentences counts their words, and two more columns follow."""
    expected, numbered = 1, False
    for line in lines:
        cells = line.split()
        if not cells:
            expected = 1
        elif not _COMMENT.fullmatch(line) and not _NO_WORD.fullmatch(cells[0]):
            if cells[0] != str(expected) or len(cells) < 3:
                return False
            expected, numbered = expected + 1, True
    return numbered


def _sentences(lines: Lines, form: str, labelled: bool, word: Callable[[int, str], tuple[str, str] | None]) -> Table:
    """Return the sentences of a file, of which ``word`` reads a line that is not empty; None is no word."""

    def rows() -> Iterator[Row]:
        found, first = list[tuple[str, str]](), 0
        for number, line in enumerate(itertools.chain(lines, ["\n"]), start=1):
            if not line.strip():
                if found:
                    yield first, tuple(map(list, zip(*found, strict=True)))[: 1 + labelled]
                found = []
            elif (one := word(number, line)) is not None:
                first = first if found else number
                found.append(one)
                if len(found) > LONGEST_SENTENCE:
                    raise CompressError(
                        f"{lines.name}, line {number} is in a sentence of more than {LONGEST_SENTENCE:,} words: put an "
                        "empty line after each sentence."
                    )

    return Table(lines.name, form, ("text", "label")[: 1 + labelled], rows, fixed=True, tagged=True)


_LINE_FORMATS = {
    "text": read_plain_text,
    "label-first": read_label_first,
    "trees": read_trees,
    "conllu": read_conllu,
    "conll": read_conll,
}
