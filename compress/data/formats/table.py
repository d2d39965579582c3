"""``Table``: the rows of a file as text cells, and ``Lines``, its decoded lines; both can be read repeatedly."""

import gzip
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from compress.data.column_inference import Cells
from compress.errors import CompressError

Row = tuple[int, Cells]  # the line or row number in the file, and the cells
SAMPLE = 1000  # rows looked at before anything is decided
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
    tagged: bool = False  # texts are words with a space between them, and labels are their tags, likewise
    # What was read, files and the split inside them: two tables that share a part hold the same data.
    identity: frozenset[str] = frozenset()
    # What the last pass met and the user should know.
    notes: Counter[str] = field(default_factory=Counter)

    def sample(self) -> list[Cells]:
        """Return the first thousand rows' cells."""
        with closing(cast(Any, self.rows())) as rows:
            return [cells for _, cells in itertools.islice(rows, SAMPLE)]


class Lines:
    """The lines of a text file, gzipped or not, each ending in ``\\n``; marks and CRLF are dropped.

    A line that is not UTF-8 is read as Windows-1252, the superset of Latin-1 that older data sets
    (TREC, Subj) are written in; it is decided line by line because some files mix both, and the lines
    are counted in ``notes``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = Counter[str]()

    def __iter__(self) -> Iterator[str]:
        del self.notes["lines read as Windows-1252"]
        with open_bytes(self.path) as stream, reading(self.path):
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if b"\x00" in line:
                    wide = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
                    what = "UTF-16 text" if wide else f"not text (a zero byte in line {number})"
                    raise CompressError(f"{self.path.name} is {what}: give a UTF-8 text file or Parquet.")
                yield self._decode(line, number).rstrip("\r\n") + "\n"

    def _decode(self, line: bytes, number: int) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            place = error.start
        text = line.decode("cp1252", errors="replace")
        if _CONTROL.search(text):
            raise CompressError(
                f"{self.path.name} is not text: line {number} has the byte 0x{line[place]:02x} at position "
                f"{place + 1}, which is neither UTF-8 nor Windows-1252; convert the file to UTF-8."
            )
        self.notes["lines read as Windows-1252"] += 1
        return text


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, unzipping it when its first bytes say so, or say in one sentence why that cannot be."""
    try:
        if path.is_dir():
            raise CompressError(f"{path.name or path} is a directory, but a file is needed: name a file in it.")
        with path.open("rb") as raw:
            start = raw.read(2)
        if not start:
            raise CompressError(f"{path.name} is empty: give a file with at least one row.")
        return cast("IO[bytes]", gzip.open(path)) if start == b"\x1f\x8b" else path.open("rb")
    except FileNotFoundError:
        raise CompressError(f"There is no file {str(path)!r}: check the path.") from None
    except OSError as error:
        raise CompressError(f"{path.name} cannot be read ({error.strerror}): check its permissions.") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a damaged gzip file raises while it is read into one sentence."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        kind = "truncated" if isinstance(error, EOFError) else "damaged"
        raise CompressError(f"{path.name} is a {kind} gzip file: download or write it again.") from None
