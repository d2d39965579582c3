"""Detect the format of a file and open it as a ``Table``; CSV and TSV are read here, others in their own modules."""

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from compress.data.columns import Dialect, csv_rows, has_header, sniff_dialect
from compress.data.formats import line_formats
from compress.data.formats.json_files import read_json_file, read_json_lines
from compress.data.formats.line_formats import CONLL, LABEL_FIRST, TREE
from compress.data.formats.table import Lines, Row, Table, open_bytes, sampled
from compress.errors import CompressError, refuse
from compress.files import JSON_DATA_BYTES, printable_name, text_limit_bytes, too_long

FORMATS: Mapping[str, str] = {  # what a user types -> what it is called
    "csv": "CSV",
    "tsv": "TSV",
    "tsv-unquoted": "TSV without quoting",
    "jsonl": "JSON Lines",
    "json": "JSON",
    "parquet": "Parquet",
    "text": "plain text",
    "label-first": "label first",
    "trees": "trees",
    "conllu": "CoNLL-U",
    "conll": "CoNLL-2003",
}
_LINE_FORMATS = {
    "text": line_formats.read_plain_text,
    "label-first": line_formats.read_label_first,
    "trees": line_formats.read_trees,
    "conllu": line_formats.read_conllu,
    "conll": line_formats.read_conll,
}
_EXCEL = re.compile(r'"?sep=.?"?', re.IGNORECASE)

csv.field_size_limit(2**31 - 1)  # rows are bounded where they are read; the default stops at 128 KiB a cell


def read_table(
    path: Path, *, role: str, labelled: bool, format: str | None = None, wanted: Sequence[str] = ()
) -> Table:
    """Open one file as a table, finding out its format by content and suffix unless it is given.

    Args:
        path: the file.
        role: which part to read where a file holds several splits.
        labelled: whether labels are needed; they may be in a second file (``X_labels.txt``) or in the
            file's suffix.
        format: one of ``FORMATS``.
        wanted: column names that the user gave; the first row is a header if it holds one.
    """
    if format is not None and format not in FORMATS:
        raise CompressError(f"There is no format {format!r}: use one of {', '.join(FORMATS)}.")
    with open_bytes(path) as stream:
        magic = stream.read(4)
    if format == "parquet" or (format is None and magic == b"PAR1"):
        from compress.data.formats.parquet import read_parquet

        return read_parquet(path, wanted)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    may_be_json = (format or suffix.removeprefix(".")) in ("json", "")  # which may be a single line
    lines = Lines(path, max(JSON_DATA_BYTES, text_limit_bytes()) if may_be_json else None)
    with closing(cast(Any, iter(lines))) as start:
        head = sampled(start, len)
    refuse((not any(line.strip() for line in head), f"{lines.name} is empty: give a file with at least one row."))
    kind = format or _sniff_format(head, suffix)
    if kind != "json":
        lines.longest = text_limit_bytes()
    if kind != "json" and len(head) == 1 and "\r" in head[0].strip():
        raise CompressError(f"{lines.name} ends its lines with CR alone: write it with LF or CRLF.")
    if kind in ("json", "jsonl"):
        table = read_json_lines(lines, wanted) if kind == "jsonl" else read_json_file(lines, role, wanted)
    elif kind in ("csv", "tsv", "tsv-unquoted", "table"):
        table = _delimited(lines, head, suffix, kind, wanted)
    else:
        table = _LINE_FORMATS[kind](lines, labelled)
    table.identity = table.identity or frozenset({printable_name(path.resolve())})
    table.notes = lines.notes
    table.unit = "row" if kind == "json" else "line"
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
    if suffix in (".conllu", ".conll"):
        return suffix[1:]
    if suffix != ".csv" and all(map(CONLL.fullmatch, full)):
        return "conll"
    if suffix not in (".csv", ".tsv"):
        for kind, pattern in (("trees", TREE), ("label-first", LABEL_FIRST)):
            found = [pattern.fullmatch(line.rstrip("\n")) for line in full]
            if all(found):
                firsts = {match[1] for match in found if match} if kind == "label-first" else set()
                if len(firsts) <= max(2, len(full) / 10):
                    return kind
    return "table" if sniff_dialect(head, suffix) else "text"


def _delimited(lines: Lines, head: list[str], suffix: str, kind: str, wanted: Sequence[str]) -> Table:
    name = lines.name
    if kind in ("tsv", "tsv-unquoted"):
        dialect = Dialect("\t", quoted=kind == "tsv")
    else:  # of a ".csv", or of what was found to be a table
        dialect = cast(Dialect, sniff_dialect(head, ".csv" if kind == "csv" else suffix))
    if _EXCEL.fullmatch(head[0].strip()):
        raise CompressError(f"{name} begins with a line for Excel, {head[0].strip()!r}: delete that line.")

    def raw() -> Iterator[tuple[int, list[str]]]:
        longest = lines.longest
        left = longest  # of a row, which may have many lines

        def counted() -> Iterator[str]:
            nonlocal left
            for line in lines:
                left -= len(line)
                if left < 0:
                    raise too_long(f"{name}, the row with line {reader.line_num + 1}", longest)
                yield line

        reader, first = csv_rows(counted(), dialect), 1
        try:
            for cells in reader:
                left = longest
                if cells:
                    yield first, cells
                first = reader.line_num + 1
        except csv.Error as error:
            other = " or say --format tsv-unquoted" if dialect.delimiter == "\t" else ""
            raise CompressError(
                f"{name}, line {reader.line_num}: {error}; correct the quotation marks{other}."
            ) from None

    with closing(cast(Any, raw())) as start:
        sample = sampled((cells for _, cells in start), lambda cells: sum(map(len, cells)))
    named = has_header(sample, wanted)
    width = len(sample[0]) if named else min(len(cells) for cells in sample)
    columns = tuple(cell.strip() for cell in sample[0]) if named else tuple(map(str, range(width)))

    def rows() -> Iterator[Row]:
        del lines.notes["rows with extra cells"]
        for line, cells in itertools.islice(raw(), int(named), None):
            if len(cells) < width or (named and len(cells) > width):
                raise CompressError(
                    f"{name}, line {line} has {len(cells)} cells, but {'the header' if named else 'line 1'} "
                    f"has {width}: correct that line, or say how the file is written with --format."
                )
            if len(cells) > width:
                # Without a header nothing says how wide a row may be: the last rows of STS-B have two more.
                lines.notes["rows with extra cells"] += 1
            yield line, cells

    shown = "csv" if dialect.delimiter in ",;" else "tsv" if dialect.quoted else "tsv-unquoted"
    return Table(name, shown, columns, rows, named=named)
