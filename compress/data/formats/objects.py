"""Python objects and data sets of the Hugging Face hub as tables, with the columns that files have."""

import hashlib
import itertools
import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from compress.data.columns import class_names
from compress.data.formats.table import Table, records_table
from compress.data.formats.text_files import SPLITS
from compress.errors import CompressError, first_line, refuse, some_of
from compress.files import faults_of

ALLOWED = (
    "give a path, a pattern, a URI, a list of texts, of pairs or of dicts, a dict of columns, a datasets.Dataset, a "
    "pandas or polars DataFrame, or a list of pathlib.Path for several files"
)
_ROWS = 1024  # of Arrow data at a time
_LOOKED_AT = 100  # rows
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*){1,2}(:[\w.-]+)?")


def object_table(data: Any, *, role: str, labelled: bool, wanted: Sequence[str]) -> Table:
    """Return the rows that a Python object holds; a frame is anything with Arrow's ``__arrow_c_stream__``.

    Raises:
        CompressError: it is of another kind, empty, or holds what no table can.
    """
    kind = type(data).__name__
    name = f"{role} ({kind})"
    if kind.endswith("DatasetDict"):
        raise CompressError(f"{name} has the splits {some_of(list(data))}: give one of them, such as data['train'].")
    if kind == "IterableDataset":
        return _stream_table(name, "stream", data, wanted, f"stream:{uuid.uuid4()}")
    if type(data).__module__.partition(".")[0] != "datasets":
        data = data.tolist() if hasattr(data, "tolist") else data.to_list() if hasattr(data, "to_list") else data
    is_frame = hasattr(data, "__arrow_c_stream__") or hasattr(data, "with_format") or isinstance(data, dict)
    is_list = isinstance(data, Sequence) and not isinstance(data, str | bytes)
    refuse((not is_frame and not is_list, f"{role} is of type {kind}, which holds no rows here: {ALLOWED}."))
    refuse((not len(data), f"{name} is empty: give at least one row."))
    return _frame_table(name, data, wanted) if is_frame else _list_table(name, data, labelled, wanted)


def _list_table(name: str, items: Sequence[Any], labelled: bool, wanted: Sequence[str]) -> Table:
    first = items[0]
    refuse(
        (
            isinstance(first, str) and len(first) < 1000 and Path(first).suffix and Path(first).is_file(),
            f"{name} holds names of files, such as {first!r}: give them as pathlib.Path objects.",
        ),
        (
            not isinstance(first, str | Mapping | tuple | list),
            f"{name} holds objects of type {type(first).__name__}: {ALLOWED}.",
        ),
        (
            labelled and isinstance(first, str),
            f"{name} holds texts without labels: give pairs of a text and its label, or a table.",
        ),
    )
    pairs, digest = isinstance(first, tuple | list), hashlib.sha256()
    for item in items:
        digest.update(repr(item).encode("utf-8", "backslashreplace") + b"\n")

    def records() -> Iterator[tuple[int, Any]]:
        for number, item in enumerate(items, start=1):
            yield number, _pair(name, item, labelled) if pairs else _plain(item)

    return records_table(name, "list", records, wanted, place=f"list:{digest.hexdigest()}")


def _plain(value: Any) -> Any:
    """Return a value with lists where it has tuples or arrays, as JSON would hold it."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [*map(_plain, value)] if isinstance(value, tuple) else value


def _pair(name: str, item: Any, labelled: bool) -> dict[str, Any]:
    """Return ``(text, label)``, or where labels are not read ``(text, text)``, or all three, as a record."""
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise CompressError(f"{name} holds {item!r:.60}, which is no pair: give (text, label) or (text, text, label).")
    second = "label" if len(item) == 2 and (labelled or not isinstance(item[1], str)) else "text_pair"
    return dict(zip(("text", second, "label"), item, strict=False))


def _frame_table(name: str, data: Any, wanted: Sequence[str]) -> Table:
    """Return a frame, a dict of columns or a ``datasets.Dataset`` as a table, which is read in batches."""
    import pyarrow

    from compress.data.formats.parquet import arrow_table

    if hasattr(data, "with_format"):
        schema, place = data.features.arrow_schema, f"dataset:{data._fingerprint}"
    else:
        with faults_of(name, "a table", "leave out columns that hold objects of several kinds"):
            data = pyarrow.table(data)
        schema, digest = data.schema, hashlib.sha256(repr(data.schema.names).encode())
        for batch in data.to_batches(_ROWS):
            digest.update(batch.serialize())
        place = f"table:{digest.hexdigest()}"

    def read(columns: Sequence[str]) -> Iterator[Any]:
        roots = [root for root in schema.names if any(f"{path}.".startswith(f"{root}.") for path in columns)]
        is_table = isinstance(data, pyarrow.Table)
        for part in [data.select(roots)] if is_table else data.select_columns(roots).with_format("arrow").iter(_ROWS):
            while any(map(pyarrow.types.is_struct, part.schema.types)):
                part = part.flatten()
            yield from part.select(list(columns)).to_batches(_ROWS)

    return arrow_table(name, "table", schema, read, wanted, place)


def is_hub_name(name: str) -> bool:
    """Say whether a path that does not exist reads like a data set on the Hugging Face hub."""
    return (
        bool(_HUB_NAME.fullmatch(name))
        and not os.path.exists(Path(name).parent)
        and not Path(name.split(":")[0]).suffix.lstrip(".0123456789")  # v1.1 has the version of a set, no suffix
    )


def read_hub(name: str, role: str, wanted: Sequence[str]) -> Table:
    """A data set on the Hugging Face hub, streamed.

    It is named ``owner/name``, ``owner/name/config`` or ``glue/sst2``, and ``:split`` may follow; without,
    the role picks the split. Classes have the names that the set gives its integers.
    """
    repository, _, split = name.partition(":")
    parts = repository.split("/")
    attempts = [(repository, None), (parts[0], parts[1])] if len(parts) == 2 else [("/".join(parts[:2]), parts[2])]
    stream = _load(name, attempts, role, split)
    return _stream_table(name, f"hub, split {stream.split}", stream, wanted, f"hub:{repository}:{stream.split}")


def _stream_table(name: str, form: str, stream: Any, wanted: Sequence[str], place: str) -> Table:
    def records() -> Iterator[tuple[int, Any]]:
        try:
            yield from enumerate(stream, start=1)
        except Exception as error:
            fault = f"The data set {name!r} broke off ({first_line(error)}): go online and try again."
            raise CompressError(fault) from None

    first = [record for _, record in itertools.islice(records(), _LOOKED_AT)]
    classes = dict(class_names(stream.features.to_dict() if stream.features else {}))
    # The hub writes -1 where a label is withheld: a class of some rows, or a score of all of a test set.
    withheld = {column: ("",) for column in first[0] if all(row.get(column) == -1 for row in first)} if first else {}
    return records_table(name, form, records, wanted, classes, withheld, place=place)


def _load(name: str, attempts: Iterable[tuple[str, str | None]], role: str, split: str) -> Any:
    """Return the streamed split of the first spelling of the name that the hub knows."""
    reason = "the Hugging Face hub cannot be reached"
    for repository, config in attempts if hub_is_reachable() else ():
        import datasets

        try:
            every = datasets.load_dataset(repository, config, streaming=True)
        except Exception as error:  # the hub's client raises many kinds; the user needs one sentence
            reason = first_line(error)
            if isinstance(error, datasets.exceptions.DatasetNotFoundError):
                continue
            break
        allowed = list(every)
        wanted = SPLITS[role] if role != "unlabeled" else (*SPLITS[role], *SPLITS["train"])
        chosen = next((known for known in ([split] if split else wanted) if known in allowed), None)
        if chosen is None:
            raise CompressError(
                f"The data set {name!r} has the splits {', '.join(map(str, allowed))}, none of them for "
                f"the role {role}: name one, such as {name.split(':')[0]}:{allowed[0]}."
            )
        return every[chosen]
    raise CompressError(
        f"There is no file {name!r}, and it could not be loaded as a Hugging Face data set ({reason}): "
        "check the name, go online, or give a file."
    )


def hub_is_reachable() -> bool:
    """Say whether the hub's host has an address; its client would retry for half a minute to find out."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname, 443)
    except OSError:
        return False
    return True
