"""Files and hub data sets as streams of examples: formats, columns, splits, overlap, tokenization."""

from compress.data.examples import (
    ContentFingerprint,
    Example,
    LabelledData,
    Overlap,
    among,
    batched,
    content_sha256,
    data_entry,
    describe_rows,
    row_key,
    row_keys,
)
from compress.data.label_encoding import LabelIndex, check_classes, infer_labels, sort_labels
from compress.data.overlap import check_roles, grouped_split
from compress.data.sources import (
    ExampleSource,
    FileSource,
    TextSource,
    join_sources,
    load_labelled_data,
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
    "load_labelled_data",
    "load_rows",
    "open_rows",
    "open_source",
    "open_text",
    "read_examples",
    "row_key",
    "row_keys",
    "sort_labels",
]
