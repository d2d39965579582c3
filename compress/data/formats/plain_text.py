"""Plain text, one text a line; labels from ``X_labels.txt`` beside ``X_text.txt``, or from a numeric suffix."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from compress.data.formats.table import Lines, Row, Table
from compress.errors import CompressError


def read_plain_text(lines: Lines, labelled: bool) -> Table:
    path = lines.path
    texts = Table(lines.name, "text", ("text",), lambda: ((n, (x.rstrip("\n"),)) for n, x in enumerate(lines, 1)))
    texts.fixed = True
    if not labelled:
        return texts
    beside = path.with_name(re.sub(r"_text(\.|$)", r"_labels\1", path.name))
    if beside != path and beside.exists():
        labels = Lines(beside)

        def rows() -> Iterator[Row]:
            for number, (text, label) in enumerate(itertools.zip_longest(lines, labels), start=1):
                if text is None or label is None:
                    short, long = (lines, labels) if text is None else (labels, lines)
                    raise CompressError(
                        f"{short.name} ends after {number - 1} lines but {long.name} goes on: they must "
                        "have one line each."
                    )
                yield number, (text.rstrip("\n"), label.strip())

        return Table(lines.name, f"text beside {labels.name}", ("text", "label"), rows, fixed=True)
    label = Path(path.name.removesuffix(".gz")).suffix[1:]
    if label.isdigit():
        return Table(
            lines.name,
            f"text of label {label}",
            ("text", "label"),
            fixed=True,
            rows=lambda: ((n, (x.rstrip("\n"), label)) for n, x in enumerate(lines, 1)),
        )
    raise CompressError(
        f"{lines.name} is plain text, one text a line, but labels are needed here: give CSV, TSV, JSON "
        "Lines or Parquet with a label column; text without labels is for the --unlabeled of other commands."
    )
