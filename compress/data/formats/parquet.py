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
from pyarrow import parquet, types

from compress.data.columns import LABELS, WORDS, class_names, usual
from compress.data.formats.table import NESTED, Row, Table, Unzipped, open_bytes, records_table
from compress.errors import CompressError, refuse
from compress.files import ALWAYS_BYTES, LARGEST_RATIO, parse_json, printable_name

_LISTS = {*LABELS, *WORDS}  # columns of lists that are read for what they hold
_BATCH_ROWS, _BATCH_BYTES = 1024, 2**28  # what is read at a time; a dictionary may repeat a text in every row
_HEADER_BYTES = 2**24  # at most, as for pyarrow
_UNPACKED, _PACKED, _INTEGER = 2, 3, 5  # fields of a header: the sizes of its page; their type
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}  # of values of one size, by type; a truth value is its type, but in a list
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
    if not file.metadata.num_rows:
        return Table(name, "parquet", tuple(file.schema_arrow.names), lambda: (row for row in list[Row]()), empty=True)
    size = batch_rows(name, stream, file.metadata, path.stat().st_size)

    def read(columns: Sequence[str]) -> Any:
        return parquet.ParquetFile(opened()).iter_batches(batch_size=size, columns=columns)

    return arrow_table(name, "parquet", file.schema_arrow, read, wanted, printable_name(path.resolve()))


def arrow_table(
    name: str,
    form: str,
    schema: pa.Schema,
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
    wanted: Sequence[str],
    place: str,
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
    refuse(
        (
            any(schema.names.count(path) > 1 for path in columns),
            f"{name} has two columns of one name: write it again with other names.",
        )
    )

    def records() -> Iterator[dict[str, Any]]:
        for batch in read(columns):
            cells = {title: _decoded(column) for title, column in zip(batch.schema.names, batch.columns, strict=True)}
            if broken := [title for title, column in cells.items() if column is None]:
                raise CompressError(
                    f"{name} has bytes in its column {broken[0]!r} that are not UTF-8: write text there."
                )
            yield from pa.RecordBatch.from_pydict(cells).to_pylist()

    return records_table(name, form, lambda: enumerate(records(), start=1), wanted, classes, place=place)


def _paths(name: str, kind: pa.DataType, lists: Sequence[str]) -> Iterator[str]:
    """Yield the dotted paths of the values of a column that are text, labels or lists of words.

    Of other lists those that are on a path of ``lists``.
    """
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_struct(kind):
        for field in kind:
            yield from _paths(f"{name}.{field.name}", field.type, lists)
    elif is_string(kind) or any(test(kind) for test in _SINGLE):
        yield name
    elif types.is_list(kind) or types.is_large_list(kind):
        if is_string(kind.value_type) or any(f"{path}.".startswith(f"{name}.") for path in lists):
            yield name


def is_string(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _decoded(column: pa.Array) -> pa.Array | None:
    """Return a column of bytes as strings, another as it is; None where bytes are no UTF-8, as an image's."""
    try:
        return column.cast(pa.large_string()) if _is_binary(column.type) else column
    except pa.ArrowInvalid:
        return None


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
        columns = [[0, *_pages(name, stream, group.column(number))] for number in range(group.num_columns)]
        refuse(
            (
                max(sum(map(sum, columns)), group.total_byte_size, 8 * metadata.num_rows) > limit,
                f"{name} holds more than {LARGEST_RATIO} times its own size, which text does not: write it again "
                "without compression if that is meant.",
            )
        )
        largest = max(largest, sum(map(max, columns)))
    return min(_BATCH_ROWS, max(1, _BATCH_BYTES // largest))


def _pages(name: str, stream: IO[bytes], column: Any) -> Iterator[int]:
    """Yield the unpacked size of every page of a column of a group, where pyarrow finds them."""
    start, fault = column.data_page_offset, f"{name} has pages that are not Parquet's; download or write it again."
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    end = start + column.total_compressed_size
    while start < end:
        stream.seek(max(start, 0))
        header = _Structure(stream)
        try:
            sizes = header.integers()
            unpacked, packed = sizes[_UNPACKED], sizes[_PACKED]
        except (LookupError, RecursionError):
            raise CompressError(fault) from None
        refuse((unpacked < 0 or packed < 0, fault))
        yield unpacked
        start += _HEADER_BYTES - header.left + packed


class _Structure:
    """A structure of Thrift's compact protocol, whose integers are read and whose other fields are stepped over.

    ``left`` are the bytes that it may still have.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.left = stream, _HEADER_BYTES

    def integers(self) -> dict[int, int]:
        """Return the 32-bit integers of the structure by field."""
        found, field = dict[int, int](), 0
        while head := self._bytes(1)[0]:
            field = field + (head >> 4) if head >> 4 else self._signed()
            if head & 15 == _INTEGER:
                found[field] = self._signed()
            else:
                self._step_over(head & 15, in_list=False)
        return found

    def _bytes(self, size: int) -> bytes:
        self.left -= size
        if self.left < 0:
            raise LookupError("a header of too many bytes")
        return self.stream.read(size)

    def _number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._bytes(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                break
        return value

    def _signed(self) -> int:
        value = self._number()
        return (((value >> 1) ^ -(value & 1)) + 2**31) % 2**32 - 2**31  # of 32 bits

    def _step_over(self, kind: int, *, in_list: bool) -> None:
        if kind in {4, 5, 6}:
            self._number()
        elif kind == 8:  # text
            self._bytes(self._number())
        elif kind in {9, 10}:
            head = self._bytes(1)[0]
            for _ in range(head >> 4 if head >> 4 < 15 else self._number()):
                self._step_over(head & 15, in_list=True)
        elif kind == 12:
            self.integers()
        else:  # no header has a map, which has no size
            self._bytes(1 if in_list and kind in {1, 2} else _SIZES[kind])
