"""Sentiment trees of SST: the leaves are the sentence, the number of the root its label."""

import re
from collections.abc import Iterator

from compress.data.formats.table import Lines, Row, Table
from compress.errors import CompressError

TREE = re.compile(r"\(\d+ .*\)\s*")
_LEAF = re.compile(r"\([^\s()]+ ([^()]+)\)")


def read_trees(lines: Lines, labelled: bool) -> Table:
    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if not TREE.fullmatch(line.rstrip("\n")) or line.count("(") != line.count(")"):
                raise CompressError(f"{lines.name}, line {number} is not a tree such as (3 (2 a) (4 b)): correct it.")
            yield number, (" ".join(_LEAF.findall(line)), line[1 : line.index(" ")])

    return Table(lines.name, "trees", ("text", "label"), rows, fixed=True)
