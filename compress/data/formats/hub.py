"""Read data sets of the Hugging Face hub."""

import itertools
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from compress.data.cells import cell, class_names
from compress.data.formats.json_parquet import SPLITS
from compress.data.formats.table import Row, Table
from compress.errors import CompressError, first_line

_LOOKED_AT = 100  # rows
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*){1,2}(:[\w.-]+)?")


def is_hub_name(name: str) -> bool:
    """Say whether a path that does not exist reads like a data set on the Hugging Face hub."""
    return (
        bool(_HUB_NAME.fullmatch(name))
        and not os.path.exists(Path(name).parent)
        and not Path(name.split(":")[0]).suffix.lstrip(".0123456789")  # v1.1 has the version of a set, no suffix
    )


def read_hub(name: str, role: str) -> Table:
    """A data set on the Hugging Face hub, streamed.

    It is named ``owner/name``, ``owner/name/config`` or ``glue/sst2``, and ``:split`` may follow; without,
    the role picks the split. Classes have the names that the set gives its integers.
    """
    repository, _, split = name.partition(":")
    parts = repository.split("/")
    attempts = [(repository, None), (parts[0], parts[1])] if len(parts) == 2 else [("/".join(parts[:2]), parts[2])]
    stream = _load(name, attempts, role, split)
    table = streamed_table(name, f"hub, split {stream.split}", stream)
    table.identity = frozenset({f"hub:{repository}:{stream.split}"})
    return table


def streamed_table(name: str, form: str, stream: Any) -> Table:
    """Return an ``IterableDataset`` of the library ``datasets`` as a table."""
    with _unbroken(name):
        columns = tuple(stream.column_names or next(iter(stream), ()))
    classes = dict(class_names(stream.features.to_dict() if stream.features else {}))

    def rows() -> Iterator[Row]:
        with _unbroken(name):
            records = iter(stream)
            first = list(itertools.islice(records, _LOOKED_AT))
            # The hub writes -1 where a label is withheld: a class of some rows, or a score of all of a test set.
            withheld = {c: ("",) for c in columns if all(record.get(c) == -1 for record in first)} | classes
            for number, record in enumerate(itertools.chain(first, records), start=1):
                yield number, tuple(cell(record.get(column), withheld.get(column, ())) for column in columns)

    return Table(name, form, columns, rows, classes=classes)


@contextmanager
def _unbroken(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = first_line(error)
        raise CompressError(f"The data set {name!r} broke off ({reason}): go online and try again.") from None


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
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
