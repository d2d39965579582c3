"""``Table``: the rows of data as cells, and ``Lines``, those of a text file; both can be read repeatedly."""

import gzip
import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from compress.data.columns import LABELS, TEXT_COLUMNS, Cells, Classes, at, cell, field_names
from compress.errors import CompressError, refuse
from compress.files import ALWAYS_BYTES, LARGEST_RATIO, printable_name, regular_file, text_limit_bytes, too_long

Row = tuple[int, Cells]  # the line or row number in the file, and the cells
Item = TypeVar("Item")
SAMPLE = 1000  # rows looked at before anything is decided, or so many that they have SAMPLE_CHARACTERS
SAMPLE_CHARACTERS = 2**25
NESTED = tuple(name for name in (*TEXT_COLUMNS, *LABELS) if "." in name or name == "cats")  # of annotation tools
# No text has these; the last one stands for a byte that Windows-1252 does not have.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffd]")
_AS_1252 = "lines read as Windows-1252"


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


def records_table(
    name: str,
    form: str,
    records: Callable[[], Iterable[tuple[int, Any]]],
    wanted: Sequence[str],
    classes: Classes | None = None,
    withheld: Classes | None = None,
    *,
    place: str = "",
) -> Table:
    """Return numbered records as a table: objects by key, arrays by position, strings as the only column.

    ``withheld`` are columns in which -1 means that there is no value; ``place`` tells what is read (``identity``).
    """
    first = [record for _, record in itertools.islice(records(), SAMPLE)]
    kinds, names = {type(record) for record in first}, {**(withheld or {}), **(classes or {})}
    refuse(
        (
            len(kinds) != 1 or not kinds <= {dict, list, str},
            f"{name} mixes kinds of rows or holds bare numbers: give one object a row.",
        )
    )
    is_text, is_list = kinds == {str}, kinds == {list}
    if is_list or is_text:
        columns = tuple(map(str, range(min(map(len, first))))) if is_list else ("text",)
    else:
        columns = field_names(first, (*wanted, *NESTED))
    known = [names.get(column, ()) for column in columns]

    def rows() -> Iterator[Row]:
        unit = "line" if form == "jsonl" else "row"
        for number, record in records():
            if not is_text and kinds != {type(record)}:
                raise CompressError(f"{name}, {unit} {number} is not like those before it: correct it.")
            if is_list and len(record) < len(columns):
                raise CompressError(f"{name}, {unit} {number} has {len(record)} cells, but {len(columns)} are needed.")
            values = [record] if is_text else record if is_list else [at(record, column) for column in columns]
            yield number, tuple(map(cell, values, known))

    identity = frozenset({place} - {""})
    return Table(name, form, columns, rows, not is_list, fixed=is_text, classes=classes or {}, identity=identity)


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
        del self.notes[_AS_1252]
        with open_bytes(self.path) as stream:
            for number, line in enumerate(iter(partial(stream.readline, self.longest + 2), b""), start=1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if len(line.removesuffix(b"\n")) > self.longest:
                    raise too_long(f"{self.name}, line {number}", self.longest)
                if b"\x00" in line:
                    wide = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
                    what = "UTF-16 text" if wide else f"not text (a zero byte in line {number})"
                    raise CompressError(f"{self.name} is {what}: give a UTF-8 text file or Parquet.")
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    text = line.decode("cp1252", errors="replace")
                    refuse(
                        (
                            _CONTROL.search(text),
                            f"{self.name} is not text: line {number} has the byte 0x{line[error.start]:02x} at "
                            f"position {error.start + 1}, which is neither UTF-8 nor Windows-1252; convert the file "
                            "to UTF-8.",
                        )
                    )
                    self.notes[_AS_1252] += 1
                yield text.rstrip("\r\n") + "\n"


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, unzipping it when its first bytes say so."""
    try:
        with regular_file(path).open("rb") as raw:
            start = raw.read(2)
    except PermissionError:
        raise CompressError(f"{printable_name(path.name)} cannot be read: check its permissions.") from None
    refuse((not start, f"{printable_name(path.name)} is empty: give a file with at least one row."))
    return io.BufferedReader(Unzipped(path), 2**17) if start == b"\x1f\x8b" else path.open("rb")


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
        refuse(
            (
                self._left < 0,
                f"{self._name} holds more than {LARGEST_RATIO} times its own size, which text does not: unzip it "
                "first if that is meant.",
            )
        )
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
