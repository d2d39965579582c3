"""Formats that hold records: JSON Lines, JSON in its many shapes, Parquet, Hugging Face data sets."""

import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from compress.data.cells import at, cell, class_names, field_names
from compress.data.column_inference import LABELS, TEXT_COLUMNS, WORDS, usual
from compress.data.formats.parquet_pages import batch_rows
from compress.data.formats.table import (
    SAMPLE,
    Lines,
    Row,
    Table,
    Unzipped,
    open_bytes,
    reading,
)
from compress.errors import CompressError
from compress.files import parse_json, printable_name, text_limit_bytes, too_long

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "validate", "val", "dev"),
    "test": ("test",),
    "unlabeled": ("unlabeled", "unlabelled", "unsupervised", "unsup", "pool"),
}
JSON_DATA_BYTES = 2**27  # of a file that is not read line by line; in memory it is up to 25 times as large
_WRAPPERS = ("data", "examples", "rows", "items")
_PATHS = tuple(name for name in (*TEXT_COLUMNS, *LABELS) if "." in name or name == "cats")  # of annotation tools
_LISTS = {*LABELS, *WORDS}  # columns of lists that are read for what they hold


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
    """A whole JSON file: rows, ids with rows, splits with rows, or labels with rows.

    Of a file with splits the role picks its own; keys such as ``oos_train`` belong to the split that
    they name, so that CLINC150 keeps its out-of-scope questions as the class they are labelled with.
    """
    name = lines.name
    left = lines.longest
    text = list[str]()
    for line in lines:
        left -= len(line)
        if left < 0:
            raise CompressError(
                f"{name} has more than {lines.longest:,} characters, and JSON is read whole: convert it to JSON Lines."
            )
        text.append(line)
    content = parse_json("".join(text), name, halves=True)
    form, parts = "json", ""
    while isinstance(content, dict) and len(content) == 1 and next(iter(content)) in _WRAPPERS:
        content = next(iter(content.values()))
    if isinstance(content, dict) and content:
        values = list(content.values())
        splits = {key: split_of(key) for key in content}
        if all(isinstance(value, list) for value in values):
            if all(splits.values()):
                keys = [key for key, split in splits.items() if split == role]
                if role == "unlabeled" and not keys:
                    keys = [key for key, split in splits.items() if split == "train"]
                if not keys:
                    raise CompressError(f"{name} has the splits {', '.join(content)}, but none for the role {role}.")
                form, parts = f"json, split {' + '.join(keys)}", "+".join(keys)
                content = [row for key in keys for row in content[key]]
            elif any(usual(key) in TEXT_COLUMNS for key in content):
                if len(set(map(len, values))) > 1:
                    raise CompressError(f"{name} has columns of different lengths: give each a cell a row.")
                content = [dict(zip(content, row, strict=True)) for row in zip(*values, strict=True)]
            else:
                if not all(_fits_under(record, key) for key, rows in content.items() for record in rows):
                    raise CompressError(
                        f"{name} holds the lists {', '.join(content)[:200]}, which are no splits, no columns and no "
                        "labels with their texts: give the list of rows alone."
                    )
                content = [_labelled(record, key) for key, rows in content.items() for record in rows]
        elif any(usual(key) in TEXT_COLUMNS for key in content) and all(
            isinstance(value, dict) and value.keys() == values[0].keys() and all(map(str.isdigit, value))
            for value in values
        ):  # columns of cells by row number, as pandas writes them
            content = [{name: cells[row] for name, cells in content.items()} for row in values[0]]
        elif all(isinstance(value, dict) for value in values):
            content = values
    if not isinstance(content, list) or not content:
        raise CompressError(
            f"{name} holds no rows: give a list of objects, or an object of ids, splits or labels with rows."
        )
    rows = content
    table = records_table(name, form, lambda: enumerate(rows, start=1), wanted)
    table.identity = frozenset({printable_name(f"{lines.path.resolve()}#{parts}")})
    return table


def _fits_under(record: Any, label: str) -> bool:
    """Tell whether a record may be a row that stands under its label: a text, or an object that names no other one."""
    if isinstance(record, dict):
        return all(usual(key) not in LABELS or value == label for key, value in record.items())
    return isinstance(record, str)


def _labelled(record: Any, label: str) -> dict[str, Any]:
    """Return a record of a file that sorts its rows under their labels, with the label in it."""
    if isinstance(record, dict):
        text = next((record[key] for key in record if usual(key) in (*TEXT_COLUMNS, "data")), None)
        return {"text": text if text is not None else record, "label": label}
    return {"text": record, "label": label}


def records_table(name: str, form: str, records: Any, wanted: Sequence[str]) -> Table:
    """Return records as a table: objects by key, arrays by position, strings as the only column."""
    first = [record for _, record in itertools.islice(records(), SAMPLE)]
    kinds = {type(record) for record in first}
    if len(kinds) != 1 or not kinds <= {dict, list, str}:
        raise CompressError(f"{name} mixes kinds of rows or holds bare numbers: give one object a row.")
    if kinds == {str}:
        return Table(name, form, ("text",), lambda: ((n, (cell(x),)) for n, x in records()), fixed=True)
    if kinds == {list}:
        columns = tuple(map(str, range(min(len(record) for record in first))))
    else:
        columns = field_names(first, (*wanted, *_PATHS))
    unit = "line" if form == "jsonl" else "row"

    def rows() -> Iterator[Row]:
        for number, record in records():
            if kinds != {type(record)}:
                raise CompressError(f"{name}, {unit} {number} is not like those before it: correct it.")
            if isinstance(record, dict):
                yield number, tuple(cell(at(record, column)) for column in columns)
            elif len(record) < len(columns):
                raise CompressError(f"{name}, {unit} {number} has {len(record)} cells, but {len(columns)} are needed.")
            else:
                yield number, tuple(cell(value) for value in record[: len(columns)])

    return Table(name, form, columns, rows, named=kinds == {dict})


def read_parquet(path: Path, wanted: Sequence[str]) -> Table:
    """A Parquet file, read in batches; columns that hold neither text nor labels, such as images, are left out.

    Files that the library ``datasets`` wrote name their classes in the schema.
    """
    from pyarrow import parquet

    name = printable_name(path.name)

    def opened() -> IO[bytes]:
        stream: IO[bytes] = open_bytes(path)
        if isinstance(getattr(stream, "raw", None), Unzipped):  # Parquet is read from its end, which gzip cannot give
            spool = tempfile.TemporaryFile()
            with reading(path):
                shutil.copyfileobj(stream, spool)
            stream = spool
        return stream

    stream = opened()
    file = parquet.ParquetFile(stream)
    empty = file.metadata.num_rows == 0
    size = 1 if empty else batch_rows(name, stream, file.metadata, path.stat().st_size)

    def read(columns: Sequence[str]) -> Iterator[Any]:
        yield from parquet.ParquetFile(opened()).iter_batches(batch_size=size, columns=columns)

    table = arrow_table(name, "parquet", file.schema_arrow, read, wanted)
    table.identity = frozenset({printable_name(path.resolve())})
    table.empty = empty
    return table


def arrow_table(
    name: str, form: str, schema: Any, read: Callable[[Sequence[str]], Iterator[Any]], wanted: Sequence[str]
) -> Table:
    """Return Arrow data as a table: ``read`` yields the record batches of some of its columns.

    Columns that hold neither text nor labels, such as images, are left out.
    """
    # Some writers, such as Hive, store strings as bytes.
    binary = [field.name for field in schema if _is_binary(field.type)]
    first = next(read(binary), None) if binary else None
    pairs = zip(first.schema.names, first.columns, strict=True) if first else ()
    texts = {title for title, column in pairs if _decoded(column) is not None}
    described = parse_json((schema.metadata or {}).get(b"huggingface", b"{}").decode(), f"{name}, schema metadata")
    classes = dict(class_names(described.get("info", {}).get("features")))
    lists = (*wanted, *_PATHS, *classes, *(title for title in schema.names if usual(title) in _LISTS))
    reads: dict[str, str] = {}  # by column, what pyarrow reads for it
    for field in schema:
        paths = [field.name] if field.name in texts else _paths(field.name, field.type)
        reads |= {path: path for path in paths}
        below = [path for path in lists if f"{path}.".startswith(f"{field.name}.")]
        reads = {path: field.name for path in below if _reaches(field.type, path[len(field.name) + 1 :])} | reads
    columns = tuple(reads)
    if any(schema.names.count(root.partition(".")[0]) > 1 for root in reads.values()):
        raise CompressError(f"{name} has two columns of one name: write it again with other names.")

    def rows() -> Iterator[Row]:
        named = [(column, classes.get(column, ())) for column in columns]
        for number, record in enumerate(_records(name, read(sorted(set(reads.values())))), start=1):
            yield number, tuple(cell(at(record, column), names) for column, names in named)

    return Table(name, form, columns, rows, classes=classes)


def _paths(name: str, kind: Any) -> Iterator[str]:
    """Yield the dotted paths of the values of a column that are text, labels or lists of words."""
    from pyarrow import types

    if types.is_struct(kind):
        for place in range(kind.num_fields):
            yield from _paths(f"{name}.{kind.field(place).name}", kind.field(place).type)
    elif _holds_text(kind):
        yield name


def _reaches(kind: Any, path: str) -> bool:
    """Say whether a dotted path leads through a type, as :func:`compress.data.cells.at` goes, to anything but bytes."""
    from pyarrow import types

    for part in path.split(".") if path else ():
        while _is_list(kind):
            kind = kind.value_type
        if not part.isdecimal():
            if not types.is_struct(kind) or kind.get_field_index(part) < 0:
                return False
            kind = kind.field(part).type
    return bool(_holds_text(kind) or _is_list(kind) or types.is_struct(kind))


def _holds_text(kind: Any) -> bool:
    """Say whether a column's values are text, labels or lists of words."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    if _is_list(kind):
        return is_string(kind.value_type)
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return is_string(kind) or any(test(kind) for test in tests)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind))


def is_string(kind: Any) -> bool:
    """Say whether an Arrow type is of strings."""
    from pyarrow import types

    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view))


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _decoded(column: Any) -> Any:
    """Return a column of bytes as strings, another as it is; None where bytes are no UTF-8, as an image's."""
    import pyarrow

    try:
        return column.cast(pyarrow.large_string()) if _is_binary(column.type) else column
    except pyarrow.ArrowInvalid:
        return None


def _records(name: str, batches: Any) -> Iterator[dict[str, Any]]:
    limit = text_limit_bytes()
    for batch in batches:
        columns = [*map(_decoded, batch.columns)]
        titles = batch.schema.names
        if broken := [title for title, column in zip(titles, columns, strict=True) if column is None]:
            raise CompressError(f"{name} has bytes in its column {broken[0]!r} that are not UTF-8: write text there.")
        if batch.nbytes > limit and any(_longest_text(column) > limit for column in columns):
            raise too_long(f"a text of {name}", limit)
        for values in zip(*(column.to_pylist() for column in columns), strict=True):
            yield dict(zip(titles, values, strict=True))


def _longest_text(column: Any) -> int:
    """Return the bytes of the longest string of a column; 0 where it has none."""
    from pyarrow import compute, types

    values = column.dictionary if types.is_dictionary(column.type) else column
    if types.is_struct(values.type):
        return max(map(_longest_text, values.flatten()), default=0)
    if _is_list(values.type):
        return _longest_text(values.flatten())
    return compute.max(compute.binary_length(values)).as_py() or 0 if is_string(values.type) else 0
