"""Formats that hold records: JSON Lines, JSON in its many shapes, Parquet, Hugging Face data sets."""

import gzip
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from compress.data.column_inference import TEXT_COLUMNS, usual
from compress.data.examples import sentence
from compress.data.formats.table import SAMPLE, Lines, Row, Table, open_bytes, reading
from compress.errors import CompressError

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "validate", "val", "dev"),
    "test": ("test",),
    "unlabeled": ("unlabeled", "unlabelled", "unsupervised", "unsup", "pool"),
}
_JSON_LIMIT = 512 * 2**20
_WRAPPERS = ("data", "examples", "rows", "items")
_SURROGATE = re.compile("[\ud800-\udfff]")


def split_of(name: str) -> str | None:
    """Return the split that a file or key is named after: ``oos_val`` and ``dev`` are ``validation``."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return next((split for split, names in SPLITS.items() if words & set(names)), None)


def cell(value: Any) -> str | None:
    """Return a JSON or Parquet value as text: lists of segments or tokens joined, absent values None."""
    if value is None or isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list) and value and all(isinstance(part, Mapping) and "text" in part for part in value):
        text = "".join(str(part["text"]) for part in value).strip()
    elif isinstance(value, list) and all(isinstance(part, str) for part in value):
        text = " ".join(value)
    else:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, (list, Mapping)) else str(value)
    return text if text is None else _whole(text)


def _whole(text: str) -> str:
    """Replace halves of characters, which JSON can spell; no tokenizer and no file can hold them."""
    if _SURROGATE.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def read_json_lines(lines: Lines) -> Table:
    """One JSON object (or array of cells, or string) a line."""
    name = lines.path.name

    def records() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise CompressError(
                        f"{name}, line {number} is not valid JSON ({_reason(error)}): correct that line."
                    ) from None

    return _records_table(name, "jsonl", records)


def read_json(lines: Lines, role: str) -> Table:
    """A whole JSON file: rows, ids with rows, splits with rows, or labels with rows.

    Of a file with splits the role picks its own; keys such as ``oos_train`` belong to the split that
    they name, so that CLINC150 keeps its out-of-scope questions as the class they are labelled with.
    """
    name = lines.path.name
    if lines.path.stat().st_size > _JSON_LIMIT:
        raise CompressError(
            f"{name} is over 512 MiB, and JSON cannot be read piece by piece: convert it to JSON Lines."
        )
    try:
        content = json.loads("".join(lines))
    except ValueError as error:
        raise CompressError(f"{name} is not valid JSON ({_reason(error)}): correct it.") from None
    form, parts = "json", ""
    while isinstance(content, dict) and len(content) == 1 and next(iter(content)) in _WRAPPERS:
        content = next(iter(content.values()))
    if isinstance(content, dict) and content:
        values = list(content.values())
        splits = {key: split_of(key) for key in content}
        if all(isinstance(value, list) for value in values):
            if all(splits.values()):
                keys = [key for key, split in splits.items() if split == role]
                if role == "unlabeled" and not keys:
                    keys = [key for key, split in splits.items() if split == "train"]
                if not keys:
                    raise CompressError(f"{name} has the splits {', '.join(content)}, but none for the role {role}.")
                form, parts = f"json, split {' + '.join(keys)}", "+".join(keys)
                content = [row for key in keys for row in content[key]]
            elif any(usual(key) in TEXT_COLUMNS for key in content):
                content = [dict(zip(content, row, strict=True)) for row in zip(*values, strict=False)]
            else:
                content = [_labelled(record, key) for key, rows in content.items() for record in rows]
        elif all(isinstance(value, dict) for value in values):
            content = values
    if not isinstance(content, list) or not content:
        raise CompressError(
            f"{name} holds no rows: give a list of objects, or an object of ids, splits or labels with rows."
        )
    rows = content
    table = _records_table(name, form, lambda: enumerate(rows, start=1))
    table.identity = frozenset({f"{lines.path.resolve()}#{parts}"})
    return table


def _labelled(record: Any, label: str) -> dict[str, Any]:
    """Return a record of a file that sorts its rows under their labels, with the label in it."""
    if isinstance(record, dict):
        text = next((record[key] for key in record if usual(key) in (*TEXT_COLUMNS, "data")), None)
        return {"text": text if text is not None else record, "label": label}
    return {"text": record, "label": label}


def _reason(error: ValueError) -> str:
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _records_table(name: str, form: str, records: Any) -> Table:
    """Return records as a table: objects by key, arrays by position, strings as the only column."""
    first = [record for _, record in itertools.islice(records(), SAMPLE)]
    kinds = {type(record) for record in first}
    if len(kinds) != 1 or not kinds <= {dict, list, str}:
        raise CompressError(f"{name} mixes kinds of rows or holds bare numbers: give one object a row.")
    if kinds == {str}:
        return Table(name, form, ("text",), lambda: ((n, (cell(x),)) for n, x in records()), fixed=True)
    if kinds == {list}:
        width = min(len(record) for record in first)
        columns: tuple[str, ...] = tuple(map(str, range(width)))
    else:
        columns = tuple(dict.fromkeys(key for record in first for key in record))
        if "words" in columns and ("tags" in columns or columns == ("words",)):
            return _tagged_table(name, form, records, labelled="tags" in columns)

    def rows() -> Iterator[Row]:
        for number, record in records():
            if kinds != {type(record)}:
                raise CompressError(f"{name}, row {number} is not like the rows before it: correct that row.")
            if isinstance(record, dict):
                yield number, tuple(cell(record.get(column)) for column in columns)
            elif len(record) < len(columns):
                raise CompressError(f"{name}, row {number} has {len(record)} cells, but {len(columns)} are needed.")
            else:
                yield number, tuple(cell(value) for value in record[: len(columns)])

    return Table(name, form, columns, rows, named=kinds == {dict})


def _tagged_table(name: str, form: str, records: Any, *, labelled: bool) -> Table:
    """Return records with a list ``words``, and a list ``tags`` where they are labelled, as sentences to tag."""

    def rows() -> Iterator[Row]:
        for number, record in records():
            words, tags = record.get("words"), record.get("tags", [])
            if not all(isinstance(part, list) and all(map(_is_word, part)) for part in (words, tags)):
                raise CompressError(f"{name}, row {number} needs a list of words and one of tags: correct that row.")
            if labelled and len(words) != len(tags):
                raise CompressError(
                    f"{name}, row {number} has {len(tags)} tags for {len(words)} words: correct that row."
                )
            yield number, (sentence(map(_whole, words)), sentence(tags))[: 1 + labelled]

    return Table(name, form, ("text", "label")[: 1 + labelled], rows, fixed=True, tagged=True)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def read_parquet(path: Path) -> Table:
    """A Parquet file, read in batches."""
    import pyarrow
    from pyarrow import parquet

    def opened() -> Any:
        stream: IO[bytes] = open_bytes(path)
        if isinstance(stream, gzip.GzipFile):  # Parquet is read from its end, which gzip cannot give
            spool = tempfile.TemporaryFile()
            with reading(path):
                shutil.copyfileobj(stream, spool)
            stream = spool
        try:
            return parquet.ParquetFile(stream)
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise CompressError(f"{path.name} is not a readable Parquet file ({reason}): write it again.") from None

    file = opened()
    columns = tuple(file.schema_arrow.names)
    if file.metadata.num_rows == 0:
        raise CompressError(f"{path.name} is empty: give a file with at least one row.")

    def rows() -> Iterator[Row]:
        batches = opened().iter_batches(batch_size=SAMPLE)
        records = (row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))
        return ((number, tuple(map(cell, record))) for number, record in enumerate(records, start=1))

    return Table(path.name, "parquet", columns, rows, identity=frozenset({str(path.resolve())}))
