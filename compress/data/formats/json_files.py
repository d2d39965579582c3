"""JSON Lines and JSON in its many shapes: rows, ids with rows, splits with rows, columns, or labels with rows."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from compress.data.columns import LABELS, TEXT_COLUMNS, Classes, at, cell, field_names, usual
from compress.data.formats.table import SAMPLE, Lines, Row, Table
from compress.errors import CompressError, refuse
from compress.files import parse_json, printable_name

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "validate", "val", "dev"),
    "test": ("test",),
    "unlabeled": ("unlabeled", "unlabelled", "unsupervised", "unsup", "pool"),
}
_WRAPPERS = ("data", "examples", "rows", "items")
NESTED = tuple(name for name in (*TEXT_COLUMNS, *LABELS) if "." in name or name == "cats")  # of annotation tools


def split_of(name: str) -> str | None:
    """Return the split that a file or key is named after: ``oos_val`` and ``dev`` are ``validation``."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return next((split for split, names in SPLITS.items() if words & set(names)), None)


def read_json_lines(lines: Lines, wanted: Sequence[str]) -> Table:
    """One JSON object (or array of cells, or string) a line."""
    name = lines.name

    def records() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, parse_json(line, f"{name}, line {number}", halves=True)

    return records_table(name, "jsonl", records, wanted)


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
        content = _of_objects(content)
    if not isinstance(content, list) or not content:
        raise CompressError(
            f"{name} holds no rows: give a list of objects, or an object of ids, splits or labels with rows."
        )
    form = f"json, split {' + '.join(keys)}" if keys else "json"
    table = records_table(name, form, lambda: enumerate(content, start=1), wanted)
    table.identity = frozenset({printable_name(f"{lines.path.resolve()}#{'+'.join(keys)}")})
    return table


def _of_lists(name: str, content: dict[str, list[Any]], splits: Sequence[str]) -> list[Any]:
    """Return the rows of some splits, of columns, or of labels with their texts."""
    if splits:
        return [row for key in splits for row in content[key]]
    if any(usual(key) in TEXT_COLUMNS for key in content):
        if len(set(map(len, content.values()))) > 1:
            raise CompressError(f"{name} has columns of different lengths: give each a cell a row.")
        return [dict(zip(content, row, strict=True)) for row in zip(*content.values(), strict=True)]
    rows = [(record, label) for label, records in content.items() for record in records]
    if not all(_fits_under(record, label) for record, label in rows):
        raise CompressError(
            f"{name} holds the lists {', '.join(content)[:200]}, which are no splits, no columns and no "
            "labels with their texts: give the list of rows alone."
        )
    return [{"text": _text_of_record(record), "label": label} for record, label in rows]


def _of_objects(content: dict[str, dict[str, Any]]) -> list[Any]:
    """Return the rows of columns of cells by row number, as pandas writes them, or of ids with rows."""
    columns = list(content.values())
    numbered = all(column.keys() == columns[0].keys() and all(map(str.isdigit, column)) for column in columns)
    if numbered and any(usual(key) in TEXT_COLUMNS for key in content):
        return [{name: cells[row] for name, cells in content.items()} for row in columns[0]]
    return columns


def _fits_under(record: Any, label: str) -> bool:
    """Tell whether a record may be a row that stands under its label: a text, or an object that names no other one."""
    if isinstance(record, dict):
        return all(usual(key) not in LABELS or value == label for key, value in record.items())
    return isinstance(record, str)


def _text_of_record(record: Any) -> Any:
    fields = record if isinstance(record, dict) else {}
    text = next((value for key, value in fields.items() if usual(key) in (*TEXT_COLUMNS, "data")), None)
    return record if text is None else text


def records_table(
    name: str,
    form: str,
    records: Callable[[], Iterable[tuple[int, Any]]],
    wanted: Sequence[str],
    classes: Classes | None = None,
) -> Table:
    """Return numbered records as a table: objects by key, arrays by position, strings as the only column."""
    first = [record for _, record in itertools.islice(records(), SAMPLE)]
    kinds, names = {type(record) for record in first}, classes or {}
    if len(kinds) != 1 or not kinds <= {dict, list, str}:
        raise CompressError(f"{name} mixes kinds of rows or holds bare numbers: give one object a row.")
    if kinds == {str}:
        return Table(name, form, ("text",), lambda: ((n, (cell(x),)) for n, x in records()), fixed=True)
    is_list = kinds == {list}
    columns = tuple(map(str, range(min(map(len, first))))) if is_list else field_names(first, (*wanted, *NESTED))
    unit, known = "line" if form == "jsonl" else "row", [names.get(column, ()) for column in columns]

    def rows() -> Iterator[Row]:
        for number, record in records():
            if kinds != {type(record)}:
                raise CompressError(f"{name}, {unit} {number} is not like those before it: correct it.")
            if is_list and len(record) < len(columns):
                raise CompressError(f"{name}, {unit} {number} has {len(record)} cells, but {len(columns)} are needed.")
            values = record if is_list else [at(record, column) for column in columns]
            yield number, tuple(map(cell, values, known))

    return Table(name, form, columns, rows, named=not is_list, classes=names)
