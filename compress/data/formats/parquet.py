"""Parquet files and Arrow data: columns of text, labels and lists of words, in batches of bounded memory.

The metadata at the end of a Parquet file may state any size. A page is unpacked into as many bytes as its own header
says, and into no more; a value is no longer than its page. So the headers, which are Thrift structures (compact
protocol) between the pages, bound what reading takes, and are read before any page is.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyarrow import compute, parquet, types

from compress.data.columns import LABELS, WORDS, class_names, usual
from compress.data.formats.json_files import NESTED, records_table
from compress.data.formats.table import Row, Table, Unzipped, open_bytes
from compress.errors import CompressError
from compress.files import ALWAYS_BYTES, LARGEST_RATIO, parse_json, printable_name, text_limit_bytes, too_long

_LISTS = {*LABELS, *WORDS}  # columns of lists that are read for what they hold
_BATCH_ROWS, _BATCH_BYTES = 1024, 2**28  # what is read at a time; a dictionary may repeat a text in every row
_HEADER_BYTES, _LARGEST_HEADER_BYTES = 2**10, 2**24  # the second is pyarrow's
_UNPACKED, _PACKED, _INTEGER = 2, 3, 5  # fields of a header: the sizes of its page; their type
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}  # of values of one size, by type
_SINGLE = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)


def read_parquet(path: Path, wanted: Sequence[str]) -> Table:
    name = printable_name(path.name)

    def opened() -> IO[bytes]:
        stream: IO[bytes] = open_bytes(path)
        if isinstance(getattr(stream, "raw", None), Unzipped):  # Parquet is read from its end, which gzip cannot give
            spool = tempfile.TemporaryFile()
            shutil.copyfileobj(stream, spool)
            stream = spool
        return stream

    stream = opened()
    file = parquet.ParquetFile(stream)
    empty = file.metadata.num_rows == 0
    size = 1 if empty else batch_rows(name, stream, file.metadata, path.stat().st_size)

    def read(columns: Sequence[str]) -> Any:
        return parquet.ParquetFile(opened()).iter_batches(batch_size=size, columns=columns)

    if empty:
        return Table(name, "parquet", tuple(file.schema_arrow.names), lambda: (row for row in list[Row]()), empty=True)
    table = arrow_table(name, "parquet", file.schema_arrow, read, wanted)
    table.identity = frozenset({printable_name(path.resolve())})
    return table


def arrow_table(
    name: str,
    form: str,
    schema: pa.Schema,
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
    wanted: Sequence[str],
) -> Table:
    """Return Arrow data as a table: ``read`` yields the batches of columns, also of parts of objects (``data.text``).

    Columns that hold neither text nor labels, such as images, are left out. Data that the library ``datasets`` wrote
    name their classes in the schema.
    """
    # Some writers, such as Hive, store strings as bytes.
    binary = [field.name for field in schema if _is_binary(field.type)]
    first = next(iter(read(binary)), None) if binary else None
    pairs = zip(first.schema.names, first.columns, strict=True) if first else ()
    texts = {title for title, column in pairs if _decoded(column) is not None}
    described = parse_json((schema.metadata or {}).get(b"huggingface", b"{}").decode(), f"{name}, schema metadata")
    classes = dict(class_names(described.get("info", {}).get("features")))
    lists = (*wanted, *NESTED, *classes, *(title for title in schema.names if usual(title) in _LISTS))
    columns = [
        path
        for field in schema
        for path in ([field.name] if field.name in texts else _paths(field.name, field.type, lists))
    ]
    if any(schema.names.count(path) > 1 for path in columns):
        raise CompressError(f"{name} has two columns of one name: write it again with other names.")
    return records_table(name, form, lambda: enumerate(_records(name, read(columns)), start=1), wanted, classes)


def _paths(name: str, kind: pa.DataType, lists: Sequence[str]) -> Iterator[str]:
    """Yield the dotted paths of the values of a column that are text, labels or lists of words.

    Of other lists those that are on a path of ``lists``.
    """
    if types.is_struct(kind):
        for field in kind:
            yield from _paths(f"{name}.{field.name}", field.type, lists)
    elif _holds_text(kind):
        yield name
    elif _is_list(kind) and any(f"{path}.".startswith(f"{name}.") for path in lists):
        yield name


def is_string(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view))


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _holds_text(kind: pa.DataType) -> bool:
    """Say whether a column's values are text, labels or lists of words."""
    if types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    if _is_list(kind):
        return is_string(kind.value_type)
    return is_string(kind) or any(test(kind) for test in _SINGLE)


def _decoded(column: pa.Array) -> pa.Array | None:
    """Return a column of bytes as strings, another as it is; None where bytes are no UTF-8, as an image's."""
    try:
        return column.cast(pa.large_string()) if _is_binary(column.type) else column
    except pa.ArrowInvalid:
        return None


def _records(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    limit = text_limit_bytes()
    for batch in batches:
        columns = {title: _decoded(column) for title, column in zip(batch.schema.names, batch.columns, strict=True)}
        if broken := [title for title, column in columns.items() if column is None]:
            raise CompressError(f"{name} has bytes in its column {broken[0]!r} that are not UTF-8: write text there.")
        if batch.nbytes > limit and any(_longest_text(column) > limit for column in columns.values()):
            raise too_long(f"a text of {name}", limit)
        yield from pa.RecordBatch.from_pydict(columns).to_pylist()


def _longest_text(column: pa.Array) -> int:
    """Return the bytes of the longest string of a column; 0 where it has none."""
    values = column.dictionary if types.is_dictionary(column.type) else column
    if types.is_struct(values.type):
        return max(map(_longest_text, values.flatten()), default=0)
    if _is_list(values.type):
        return _longest_text(values.flatten())
    return compute.max(compute.binary_length(values)).as_py() or 0 if is_string(values.type) else 0


def batch_rows(name: str, stream: IO[bytes], metadata: Any, size: int) -> int:
    """Return how many rows of a Parquet file may be read at a time.

    Args:
        stream: what the file holds.
        size: of the file on the disk.

    Raises:
        CompressError: the parts that are in memory at a time are far larger than the file, or pages are damaged.
    """
    limit, largest = max(ALWAYS_BYTES, LARGEST_RATIO * size), 1
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        unpacked = longest = 0
        for column in map(group.column, range(group.num_columns)):
            pages = [0, *_pages(name, stream, column)]
            unpacked, longest = unpacked + sum(pages), longest + max(pages)
        if max(unpacked, group.total_byte_size, 8 * metadata.num_rows) > limit:
            raise CompressError(
                f"{name} holds more than {LARGEST_RATIO} times its own size, which text does not: write it again "
                "without compression if that is meant."
            )
        largest = max(largest, longest)
    return min(_BATCH_ROWS, max(1, _BATCH_BYTES // largest))


def _pages(name: str, stream: IO[bytes], column: Any) -> Iterator[int]:
    """Yield the unpacked size of every page of a column of a group, where pyarrow finds them."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    end = start + column.total_compressed_size
    while start < end:
        header, length = _header(name, stream, start)
        if not (0 <= header.get(_PACKED, -1) and 0 <= header.get(_UNPACKED, -1)):
            raise _damaged(name)
        yield header[_UNPACKED]
        start += length + header[_PACKED]


def _header(name: str, stream: IO[bytes], start: int) -> tuple[dict[int, int], int]:
    """Return the integers of a page's header by field, and its length."""
    size = _HEADER_BYTES
    while size <= _LARGEST_HEADER_BYTES:
        stream.seek(max(start, 0))
        reader = _Structure(stream.read(size))
        try:
            return reader.integers(), reader.place
        except IndexError:  # it goes on
            size *= 16
        except (ValueError, RecursionError):
            break
    raise _damaged(name)


def _damaged(name: str) -> CompressError:
    return CompressError(f"{name} has pages that are not Parquet's; download or write it again.")


class _Structure:
    """A structure of Thrift's compact protocol, whose integers are read and whose other fields are stepped over."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def integers(self) -> dict[int, int]:
        """Return the 32-bit integers of the structure by field."""
        found, field = dict[int, int](), 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            if head & 15 == _INTEGER:
                found[field] = self._signed()
            else:
                self._step_over(head & 15, in_list=False)
        return found

    def _byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def _number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number of too many bytes")

    def _signed(self) -> int:
        value = self._number()
        return (((value >> 1) ^ -(value & 1)) + 2**31) % 2**32 - 2**31  # of 32 bits

    def _step_over(self, kind: int, *, in_list: bool) -> None:
        if kind in _SIZES:
            self.place += in_list if kind in {1, 2} else _SIZES[kind]  # a truth value is its type, but in a list
        elif kind in {4, 5, 6}:
            self._number()
        elif kind == 8:  # text
            length = self._number()  # which moves the place
            self.place += length
        elif kind in {9, 10}:
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._number()):
                self._step_over(head & 15, in_list=True)
        elif kind == 12:
            self.integers()
        else:  # a map, which no header has
            raise ValueError(f"type {kind}")
