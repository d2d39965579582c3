"""File formats: find out how a file is written and open it as a ``Table``."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from compress.data.column_inference import Dialect, has_header, sniff_dialect, split_rows
from compress.data.examples import sentence
from compress.data.formats.json_parquet import read_json, read_json_lines, read_parquet
from compress.data.formats.table import SAMPLE, Lines, Row, Table, open_bytes, reading
from compress.errors import CompressError

FORMATS = ("csv", "tsv", "tsv-unquoted", "jsonl", "json", "parquet", "text", "label-first", "trees", "conllu")
_LABEL_FIRST = re.compile(r"(-?\d+|__label__\S+) +(.*)")
_TREE = re.compile(r"\(\d+ .*\)\s*")
_NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")
_LEAF = re.compile(r"\(\S+ ([^()]+)\)")

csv.field_size_limit(2**27)  # whole reviews and articles; the default stops at 128 KiB


def read_table(
    path: Path, *, role: str, labelled: bool, format: str | None = None, wanted: Iterable[str | None] = ()
) -> Table:
    """Open one file as a table, finding out its format by content and suffix unless it is given.

    Args:
        path: the file.
        role: which part to read where a file holds several splits.
        labelled: whether labels are needed; they may lie beside the text (``X_labels.txt``) or in the
            file's suffix.
        format: one of ``FORMATS``.
        wanted: column names that the user gave; the first row is a header if it holds one.
    """
    if format is not None and format not in FORMATS:
        raise CompressError(f"There is no format {format!r}: use one of {', '.join(FORMATS)}.")
    with open_bytes(path) as stream, reading(path):
        magic = stream.read(4)
    if format == "parquet" or (format is None and magic == b"PAR1"):
        return read_parquet(path)
    lines = Lines(path)
    with closing(cast(Any, iter(lines))) as start:
        head = list(itertools.islice(start, SAMPLE))
    if not any(line.strip() for line in head):
        raise CompressError(f"{path.name} is empty: give a file with at least one row.")
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    kind = format or _sniff_format(head, suffix)
    if kind in ("json", "jsonl"):
        table = read_json_lines(lines) if kind == "jsonl" else read_json(lines, role)
    elif kind in ("csv", "tsv", "tsv-unquoted", "table"):
        table = _delimited(lines, head, suffix, kind, [name for name in wanted if name])
    else:
        table = _LINE_FORMATS[kind](lines, labelled)
    table.identity = table.identity or frozenset({str(path.resolve())})
    table.notes = lines.notes
    return table


def _sniff_format(head: list[str], suffix: str) -> str:
    full = [line for line in head if line.strip()]
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if suffix in (".json", ""):
        start = full[0].lstrip()[0]
        if suffix == ".json" or start in "[{":
            one_each = len(full) > 1 and all(line.strip()[0] + line.strip()[-1] == "{}" for line in full)
            return "jsonl" if one_each else "json"
    if suffix == ".conllu":
        return "conllu"
    if suffix not in (".csv", ".tsv"):
        for kind, pattern in (("trees", _TREE), ("label-first", _LABEL_FIRST)):
            found = [pattern.fullmatch(line.rstrip("\n")) for line in full]
            if all(found):
                firsts = {match[1] for match in found if match} if kind == "label-first" else set()
                if len(firsts) <= max(2, len(full) / 10):
                    return kind
    return "table" if sniff_dialect(head, suffix) else "text"


def _delimited(lines: Lines, head: list[str], suffix: str, kind: str, wanted: list[str]) -> Table:
    suffixes = {"csv": ".csv", "tsv": ".tsv", "tsv-unquoted": ".tsv", "table": suffix}
    dialect = sniff_dialect(head, suffixes[kind])
    assert dialect is not None
    if kind == "tsv-unquoted" or kind == "tsv":
        dialect = Dialect("\t", quoted=kind == "tsv")
    name = lines.path.name

    def raw() -> Iterator[tuple[int, list[str]]]:
        reader = split_rows(lines, dialect)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise CompressError(
                    f"{name}, line {reader.line_num}: {error}; correct the quotation marks or say "
                    "--format tsv-unquoted."
                ) from None
            if cells:
                yield reader.line_num, cells

    with closing(cast(Any, raw())) as start:
        sample = [cells for _, cells in itertools.islice(start, SAMPLE)]
    named = has_header(sample, wanted)
    width = len(sample[0]) if named else min(len(cells) for cells in sample)
    columns = tuple(cell.strip() for cell in sample[0]) if named else tuple(map(str, range(width)))

    def rows() -> Iterator[Row]:
        lines.notes.pop("rows with extra cells", None)
        for line, cells in itertools.islice(raw(), int(named), None):
            if len(cells) < width or (named and len(cells) > width):
                raise CompressError(
                    f"{name}, line {line} has {len(cells)} cells, but {'the header' if named else 'line 1'} "
                    f"has {width}: correct that line, or say how the file is written with --format."
                )
            if len(cells) > width:
                # Without a header nothing says how wide a row may be: the last rows of STS-B have two more.
                lines.notes["rows with extra cells"] = lines.notes.get("rows with extra cells", 0) + 1
            yield line, cells

    shown = "csv" if dialect.delimiter in ",;" else "tsv" if dialect.quoted else "tsv-unquoted"
    return Table(name, shown, columns, rows, named=named)


def _plain(lines: Lines, labelled: bool) -> Table:
    """One text a line; labels lie in ``X_labels.txt`` beside ``X_text.txt`` or are the numeric suffix."""
    path = lines.path
    texts = Table(path.name, "text", ("text",), lambda: ((n, (x.rstrip("\n"),)) for n, x in enumerate(lines, 1)))
    texts.fixed = True
    if not labelled:
        return texts
    beside = path.with_name(re.sub(r"_text(\.|$)", r"_labels\1", path.name))
    if beside != path and beside.exists():
        labels = Lines(beside)

        def rows() -> Iterator[Row]:
            for number, (text, label) in enumerate(itertools.zip_longest(lines, labels), start=1):
                if text is None or label is None:
                    short, long = (path, beside) if text is None else (beside, path)
                    raise CompressError(
                        f"{short.name} ends after {number - 1} lines but {long.name} goes on: they must "
                        "have one line each."
                    )
                yield number, (text.rstrip("\n"), label.strip())

        return Table(path.name, f"text beside {beside.name}", ("text", "label"), rows, fixed=True)
    label = Path(path.name.removesuffix(".gz")).suffix[1:]
    if label.isdigit():
        return Table(
            path.name,
            f"text of label {label}",
            ("text", "label"),
            fixed=True,
            rows=lambda: ((n, (x.rstrip("\n"), label)) for n, x in enumerate(lines, 1)),
        )
    raise CompressError(
        f"{path.name} is plain text, one text a line, but labels are needed here: give CSV, TSV, JSON "
        "Lines or Parquet with a label column, or pass this file as --unlabeled."
    )


def _label_first(lines: Lines, labelled: bool) -> Table:
    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            match = _LABEL_FIRST.fullmatch(line.rstrip("\n"))
            if match is None:
                raise CompressError(
                    f"{lines.path.name}, line {number} does not start with a label and a space: correct it."
                )
            yield number, (match[2], match[1].removeprefix("__label__"))

    return Table(lines.path.name, "label-first", ("text", "label"), rows, fixed=True)


def _trees(lines: Lines, labelled: bool) -> Table:
    """Sentiment trees: the leaves are the sentence, the root's number its label."""

    def rows() -> Iterator[Row]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if not _TREE.fullmatch(line.rstrip("\n")) or line.count("(") != line.count(")"):
                raise CompressError(
                    f"{lines.path.name}, line {number} is not a tree such as (3 (2 a) (4 b)): correct it."
                )
            yield number, (" ".join(_LEAF.findall(line)), line[1 : line.index(" ")])

    return Table(lines.path.name, "trees", ("text", "label"), rows, fixed=True)


def _conllu(lines: Lines, labelled: bool) -> Table:
    """Sentences of a treebank: the words (column 2) with their universal parts of speech (column 4).

    The surface form of a contraction (``1-2``) is skipped for its words, and so are words that are not there in the
    text (``1.1``). https://universaldependencies.org/format.html
    """
    name = lines.path.name

    def rows() -> Iterator[Row]:
        words, tags = list[str](), list[str]()
        for number, line in enumerate(itertools.chain(lines, ["\n"]), start=1):
            cells = line.rstrip("\n").split("\t")
            if not line.strip():
                if words:
                    yield number - len(words), (sentence(words), sentence(tags))[: 1 + labelled]
                words, tags = [], []
            elif line[0] != "#" and not _NO_WORD.fullmatch(cells[0]):
                if len(cells) < 2 or not cells[0].isdigit() or not cells[1].strip():
                    raise CompressError(
                        f"{name}, line {number} is not a line of CoNLL-U, which has a number, a word and eight more "
                        "cells with tabs between them: correct it."
                    )
                tag = cells[3] if labelled and len(cells) > 3 else "_"
                if labelled and tag in ("_", ""):
                    raise CompressError(
                        f"{name}, line {number} has no tag in its fourth cell, but labels are needed here: give a "
                        "treebank with parts of speech, or pass this file as --unlabeled."
                    )
                words.append(cells[1])
                tags.append(tag)

    return Table(name, "conllu", ("text", "label")[: 1 + labelled], rows, fixed=True, tagged=True)


_LINE_FORMATS = {"text": _plain, "label-first": _label_first, "trees": _trees, "conllu": _conllu}
