"""Files and hub data sets as streams of examples: formats, columns, splits, overlap, tokenization.

What opens data is imported when it is first used: the prediction of a single text needs none of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from compress.data.examples import (
    ContentFingerprint,
    Example,
    LabelIndex,
    LabelledData,
    Overlap,
    among,
    batched,
    check_classes,
    content_sha256,
    data_entry,
    describe_rows,
    infer_labels,
    row_key,
    row_keys,
    sort_labels,
)

if TYPE_CHECKING:
    from compress.data.overlap import check_roles, grouped_split
    from compress.data.sources import (
        ExampleSource,
        FileSource,
        TextSource,
        join_sources,
        load_rows,
        open_rows,
        open_source,
        open_text,
        read_examples,
    )

__all__ = [
    "ContentFingerprint",
    "Example",
    "ExampleSource",
    "FileSource",
    "LabelIndex",
    "LabelledData",
    "Overlap",
    "TextSource",
    "among",
    "batched",
    "check_classes",
    "check_roles",
    "content_sha256",
    "data_entry",
    "describe_rows",
    "grouped_split",
    "infer_labels",
    "join_sources",
    "load_rows",
    "open_rows",
    "open_source",
    "open_text",
    "read_examples",
    "row_key",
    "row_keys",
    "sort_labels",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "overlap" if name in {"check_roles", "grouped_split"} else "sources"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
