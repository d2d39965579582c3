"""Lists, data sets of the library ``datasets`` and data frames as tables, with the columns that files have."""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.data.formats.hub import streamed_table
from compress.data.formats.json_parquet import arrow_table, records_table
from compress.data.formats.table import Table
from compress.errors import CompressError, some_of
from compress.files import faults_of

ALLOWED = (
    "give a path, a pattern, a URI, a list of texts, of pairs or of dicts, a dict of columns, a datasets.Dataset, a "
    "pandas or polars DataFrame, or a list of pathlib.Path for several files"
)
_ROWS = 1024  # of Arrow data at a time


def value_table(value: Any, *, role: str, labelled: bool, wanted: Sequence[str]) -> Table:
    """Return the rows that a Python object holds; a frame is anything with Arrow's ``__arrow_c_stream__``.

    Raises:
        CompressError: it is of another kind, empty, or holds what no table can.
    """
    kind = type(value).__name__
    name = f"{role} ({kind})"
    if kind.endswith("DatasetDict"):
        raise CompressError(f"{name} has the splits {some_of(list(value))}: give one of them, such as data['train'].")
    if _is_dataset(value):
        return _dataset_table(name, value, wanted)
    if hasattr(value, "tolist") or hasattr(value, "to_list"):  # an array, or a column of a frame
        value = value.tolist() if hasattr(value, "tolist") else value.to_list()
    if hasattr(value, "__arrow_c_stream__") or isinstance(value, dict):
        return _frame_table(name, value, wanted)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise CompressError(f"{role} is of type {kind}, which holds no rows here: {ALLOWED}.")
    if not value:
        raise CompressError(f"{name} is empty: give at least one row.")
    return _list_table(name, value, labelled, wanted)


def _is_dataset(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "datasets"


def _list_table(name: str, items: Sequence[Any], labelled: bool, wanted: Sequence[str]) -> Table:
    first = items[0]
    if isinstance(first, str) and len(first) < 1000 and Path(first).suffix and Path(first).is_file():
        raise CompressError(f"{name} holds names of files, such as {first!r}: give them as pathlib.Path objects.")
    if not isinstance(first, str | Mapping | tuple | list):
        raise CompressError(f"{name} holds objects of type {type(first).__name__}: {ALLOWED}.")
    if labelled and isinstance(first, str):
        raise CompressError(f"{name} holds texts without labels: give pairs of a text and its label, or a table.")
    pairs = isinstance(first, tuple | list)

    def records() -> Iterator[tuple[int, Any]]:
        return ((n, _pair(name, item, labelled) if pairs else item) for n, item in enumerate(items, start=1))

    table = records_table(name, "list", records, wanted)
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr(item).encode("utf-8", "backslashreplace") + b"\n")
    table.identity = frozenset({f"list:{digest.hexdigest()}"})
    return table


def _pair(name: str, item: Sequence[Any], labelled: bool) -> dict[str, Any]:
    """Return ``(text, label)``, or where labels are not read ``(text, text)``, or all three, as a record."""
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise CompressError(f"{name} holds {item!r:.60}, which is no pair: give (text, label) or (text, text, label).")
    second = "label" if len(item) == 2 and (labelled or not isinstance(item[1], str)) else "text_pair"
    return dict(zip(("text", second, "label"), item, strict=False))


def _frame_table(name: str, frame: Any, wanted: Sequence[str]) -> Table:
    import pyarrow

    with faults_of(name, "a table", "leave out columns that hold objects of several kinds"):
        content = pyarrow.table(frame)
    if not content.num_rows:
        raise CompressError(f"{name} is empty: give at least one row.")
    table = arrow_table(
        name, "table", content.schema, lambda names: iter(content.select(names).to_batches(_ROWS)), wanted
    )
    digest = hashlib.sha256(str(content.schema.names).encode())
    for batch in content.to_batches(_ROWS):
        digest.update(batch.serialize())
    table.identity = frozenset({f"table:{digest.hexdigest()}"})
    return table


def _dataset_table(name: str, dataset: Any, wanted: Sequence[str]) -> Table:
    if not hasattr(dataset, "__len__"):  # an IterableDataset
        table = streamed_table(name, "stream", dataset)
        table.identity = frozenset({f"stream:{uuid.uuid4()}"})
        return table
    if not len(dataset):
        raise CompressError(f"{name} is empty: give at least one row.")

    def read(columns: Sequence[str]) -> Iterator[Any]:
        for part in dataset.select_columns(list(columns)).with_format("arrow").iter(_ROWS):
            yield from part.to_batches()

    table = arrow_table(name, "table", dataset.features.arrow_schema, read, wanted)
    table.identity = frozenset({f"dataset:{dataset._fingerprint}"})
    return table
