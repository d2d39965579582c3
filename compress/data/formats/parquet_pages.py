"""How much memory the pages of a Parquet file take, read from their headers before any page is.

The metadata at the end of a file may state any size. A page is unpacked into as many bytes as its own header says, and
into no more; a value is no longer than its page. So the headers, which are Thrift structures (compact protocol) between
the pages, bound what reading takes.
"""

from collections.abc import Iterator
from typing import IO, Any

from compress.data.formats.table import ALWAYS_BYTES, LARGEST_RATIO
from compress.errors import CompressError

_BATCH_ROWS, _BATCH_BYTES = 1024, 2**28  # what is read at a time; a dictionary may repeat a text in every row
_HEADER_BYTES, _LARGEST_HEADER_BYTES = 2**10, 2**24  # the second is pyarrow's
_UNPACKED, _PACKED, _INTEGER = 2, 3, 5  # fields of a header: the sizes of its page; their type


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
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number of too many bytes")

    def _signed(self) -> int:
        value = self._number()
        return (((value >> 1) ^ -(value & 1)) + 2**31) % 2**32 - 2**31  # of 32 bits

    def _step_over(self, kind: int, *, in_list: bool) -> None:
        if kind in {1, 2}:  # a truth value is its own type, but in a list
            self.place += in_list
        elif kind in {3, 7}:
            self.place += 1 if kind == 3 else 8
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
