"""``Table``: the rows of a file as text cells, and ``Lines``, its decoded lines; both can be read repeatedly."""

import gzip
import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from compress.data.columns import Cells, Classes
from compress.errors import CompressError, system_fault
from compress.files import ALWAYS_BYTES, LARGEST_RATIO, printable_name, regular_file, text_limit_bytes, too_long

Row = tuple[int, Cells]  # the line or row number in the file, and the cells
Item = TypeVar("Item")
SAMPLE = 1000  # rows looked at before anything is decided, or so many that they have SAMPLE_CHARACTERS
SAMPLE_CHARACTERS = 2**25
# No text has these; the last one stands for a byte that Windows-1252 does not have.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffd]")


@dataclass
class Table:
    """A file as columns of cells; ``rows`` starts a new pass over it each time."""

    name: str
    format: str
    columns: tuple[str, ...]
    rows: Callable[[], Iterator[Row]]
    named: bool = True
    fixed: bool = False  # the format itself says what each column holds
    empty: bool = False  # a Parquet file without rows, as Spark writes some: of several files it is left out
    tagged: bool = False  # texts are lists of words, and labels are lists of their tags
    unit: str = "row"  # what rows are counted by: "line" where each starts on a line of its own
    classes: Classes = field(default_factory=dict)  # of the columns for which a schema has them
    # What was read, files and the split inside them: two tables that share a part hold the same data.
    identity: frozenset[str] = frozenset()
    # What the last pass met and the user should know.
    notes: Counter[str] = field(default_factory=Counter)

    def sample(self) -> list[Cells]:
        with closing(cast(Any, self.rows())) as rows:
            return sampled((cells for _, cells in rows), lambda cells: sum(len(str(cell)) for cell in cells))


def sampled(items: Iterable[Item], size: Callable[[Item], int]) -> list[Item]:
    """Return the first items, which ``size`` measures in characters."""
    found: list[Item] = []
    left = SAMPLE_CHARACTERS
    for item in itertools.islice(items, SAMPLE):
        found.append(item)
        left -= size(item)
        if left < 0:
            break
    return found


class Lines:
    """The lines of a text file, gzipped or not, each ending in ``\\n``; marks and CRLF are dropped.

    A line that is not UTF-8 is read as Windows-1252, the superset of Latin-1 that older data sets
    (TREC, Subj) are written in; it is decided line by line because some files mix both, and the lines
    are counted in ``notes``. No line may be longer than ``longest`` bytes, by default the limit of a text.
    """

    def __init__(self, path: Path, longest: int | None = None) -> None:
        self.path = path
        self.name = printable_name(path.name)
        self.longest = longest or text_limit_bytes()
        self.notes = Counter[str]()

    def __iter__(self) -> Iterator[str]:
        del self.notes["lines read as Windows-1252"]
        with open_bytes(self.path) as stream:
            for number, line in enumerate(iter(partial(stream.readline, self.longest + 2), b""), start=1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if len(line.removesuffix(b"\n")) > self.longest:
                    raise too_long(f"{self.name}, line {number}", self.longest)
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    text = self._decode(line, number, error.start)
                if "\x00" in text:
                    raise self._zero_byte(line, number)
                yield text.rstrip("\r\n") + "\n"

    def _zero_byte(self, line: bytes, number: int) -> CompressError:
        wide = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
        what = "UTF-16 text" if wide else f"not text (a zero byte in line {number})"
        return CompressError(f"{self.name} is {what}: give a UTF-8 text file or Parquet.")

    def _decode(self, line: bytes, number: int, place: int) -> str:
        text = line.decode("cp1252", errors="replace")
        if b"\x00" in line:
            raise self._zero_byte(line, number)
        if _CONTROL.search(text):
            raise CompressError(
                f"{self.name} is not text: line {number} has the byte 0x{line[place]:02x} at position "
                f"{place + 1}, which is neither UTF-8 nor Windows-1252; convert the file to UTF-8."
            )
        self.notes["lines read as Windows-1252"] += 1
        return text


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, unzipping it when its first bytes say so, or say in one sentence why that cannot be."""
    regular_file(path)
    name = printable_name(path.name)
    try:
        with path.open("rb") as raw:
            start = raw.read(2)
        if not start:
            raise CompressError(f"{name} is empty: give a file with at least one row.")
        return io.BufferedReader(Unzipped(path), 2**17) if start == b"\x1f\x8b" else path.open("rb")
    except OSError as error:
        if system_fault(error):
            raise
        raise CompressError(f"{name} cannot be read ({error.strerror}): check its permissions.") from None


class Unzipped(io.RawIOBase):
    """What a gzip file holds, as far as it is no more than text can be: a bomb of 20 MB holds 20 GB."""

    def __init__(self, path: Path) -> None:
        self._file = gzip.open(path)
        self._name = printable_name(path.name)
        self._left = max(ALWAYS_BYTES, LARGEST_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = self._file.readinto(buffer)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            kind = "truncated" if isinstance(error, EOFError) else "damaged"
            raise CompressError(f"{self._name} is a {kind} gzip file: download or write it again.") from None
        self._left -= count
        if self._left < 0:
            raise CompressError(
                f"{self._name} holds more than {LARGEST_RATIO} times its own size, which text does not: unzip it first "
                "if that is meant."
            )
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
