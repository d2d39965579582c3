"""Lines that begin with their label: TREC, fastText (``__label__``) and sentence polarity files."""

import re
from collections.abc import Iterator

from compress.data.formats.table import Lines, Row, Table
from compress.errors import CompressError

LABEL_FIRST = re.compile(r"(-?\d+|__label__\S+) +(.*)")


def read_label_first(lines: Lines, labelled: bool) -> Table:
    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            match = LABEL_FIRST.fullmatch(line.rstrip("\n"))
            if match is None:
                raise CompressError(f"{lines.name}, line {number} does not start with a label and a space: correct it.")
            if match[2].startswith("__label__"):
                raise CompressError(
                    f"{lines.name}, line {number} has several labels, and a text has one here: keep one of them."
                )
            yield number, (match[2], match[1].removeprefix("__label__"))

    return Table(lines.name, "label-first", ("text", "label"), rows, fixed=True)
