"""Inputs at the door of a stage: whatever a user has, as texts or as labelled rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compress.data.examples import Example, LabelledData
from compress.data.label_encoding import LabelMap
from compress.data.sources import ExampleSource, join_sources, open_source, read_examples
from compress.data.text_source import TextSource
from compress.errors import CompressError
from compress.escaping.uris import without_secrets
from compress.progress import logger


def open_rows(data: Any, *, role: str, label_map: Any = None, **columns: Any) -> TextSource:
    """Open labelled rows.

    Args:
        data: what :func:`compress.data.open_source` opens, a list of examples or of ``pathlib.Path``, or a source that
            is open, which is returned.
        role: ``train``, ``validation`` or ``test``.
        label_map: the classes of its labels, as a table or a JSON or TOML file with one.
        columns: ``text_column``, ``text_pair_column``, ``label_column``, ``format``.
    """
    if isinstance(data, TextSource):
        return data
    if _are(Path, data):
        return join_sources([open_rows(path, role=role, label_map=label_map, **columns) for path in data])
    if not _are(Example, data):
        source = open_source(data, role=role, labelled=True, **columns)
        return source.rename_labels(label_map) if label_map else source
    if number := next((number for number, row in enumerate(data, 1) if row.label is None and row.tags is None), 0):
        raise CompressError(f"Row {number} of {role} has no label, and labels are needed here: give it one.")
    if label_map:
        classes = LabelMap.of(label_map)
        data = [classes.apply(row, row.origin.classes if row.origin else ()) for row in data]
    return ExampleSource(data, role, labelled=True)


def load_rows(data: Any, *, role: str, **columns: Any) -> list[Example]:
    """Read labelled rows into memory and say how they were understood; None gives no rows. See :func:`open_rows`."""
    if data is None:
        return []
    source = open_rows(data, role=role, **columns)
    examples = read_examples(source)
    logger.info("%s: %s", role, source.describe())
    return examples


def load_labelled_data(train: Any, validation: Any, columns: dict[str, Any], **checks: Any) -> LabelledData:
    """Read the labelled rows of a stage; ``checks`` are the other fields of :class:`LabelledData`."""
    return LabelledData(
        load_rows(train, role="train", **columns), load_rows(validation, role="validation", **columns), **checks
    )


def open_text(
    *data: Any,
    role: str | None = "unlabeled",
    beside: object = None,
    rows: int | None = None,
    keep_empty: bool = False,
    **columns: Any,
) -> TextSource:
    """Open texts, or pairs of texts, as one stream, and say how they are read.

    Args:
        data: as for :func:`open_rows`, without labels; several are read in turn, a row from each.
        role: how messages call them; None for no message.
        beside: labelled data, which the label's column is of; texts in a ``.txt`` then have no columns to choose,
            unless it is a table of tabs.
        rows: the most rows, spread evenly.
        keep_empty: whether rows without text count.
        columns: as for :func:`open_rows`.
    """
    left_out = {"label_map", "label_column" if beside is not None else ""}
    names = {key: value for key, value in columns.items() if key not in left_out}
    data = tuple(item for one in data for item in (one if _are(Path, one) else [one]))
    sources, plain = list[TextSource](), list(map(_is_plain, data))
    for item, is_plain in zip(data, plain, strict=True):
        if isinstance(item, TextSource):
            sources.append(item)
        elif _are(Example, item):
            sources.append(ExampleSource(item, role or "unlabeled"))
        else:
            apart = is_plain and (beside is not None or not all(plain))
            source = open_source(item, role="unlabeled", labelled=False, **({} if apart else names))
            if apart and source.format.startswith("tsv"):  # a table for all that; the format is that of other files
                source = open_source(item, role="unlabeled", labelled=False, **{**names, "format": None})
            source.keep_empty = keep_empty
            sources.append(source)
        if role:
            logger.info("%s: %s", role, sources[-1].describe())
    pool = join_sources(sources)
    return pool.sample(rows) if rows else pool


def _are(kind: type, data: Any) -> bool:
    return isinstance(data, Sequence) and bool(data) and isinstance(data[0], kind)


def _is_plain(data: Any) -> bool:
    return isinstance(data, str | Path) and without_secrets(str(data)).removesuffix(".gz").endswith(".txt")
