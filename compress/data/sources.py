"""Open files, hub data sets and Python objects as streams of labelled or unlabelled examples."""

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from compress.data.cells import Cell, StructureError, inner_fields, label_of, text_of, words_of
from compress.data.column_inference import Cells, are_tagged, choose_columns
from compress.data.data_files import DataFile, find_files
from compress.data.examples import Columns, Example, RowOrigin, content_sha256, sentence, without_label
from compress.data.formats.hub import is_hub_name, read_hub
from compress.data.formats.python_values import value_table
from compress.data.formats.table import Table
from compress.data.formats.text_files import FORMATS, read_table
from compress.data.label_encoding import LabelMap, encode_scores, infer_labels
from compress.data.text_source import TextSource
from compress.errors import CompressError, did_you_mean, some_of
from compress.escaping.uris import without_secrets
from compress.files import faults_of, printable_name, text_limit_bytes, too_long

Item = TypeVar("Item")
ValuedRow = tuple[Example, Sequence[str]]
_MOST_COLUMNS = 10_000


class FileSource(TextSource):
    """Examples streamed from one or more files.

    Several files are read ``in_turn``, a row from each, so that the start of a stream holds all of
    them; or one after the other, which keeps one of them open. Rows without text are counted, and skipped unless
    ``keep_empty``; ``describe()`` says how many were met.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        columns: Columns,
        *,
        name: str,
        labelled: bool,
        tagged: bool = False,
        values: Sequence[str] = (),
        in_turn: bool = True,
    ) -> None:
        self.name = name
        self.format = tables[0].format
        self.columns = columns
        self.identity = frozenset(place for table in tables for place in table.identity)
        self.values = tuple(values)
        self._labelled = labelled
        self._tagged = tagged
        self._label_map: LabelMap | None = None
        self._tables = tables
        self._in_turn = in_turn
        self.keep_empty = False
        self._empty = 0

    def __iter__(self) -> Iterator[Example]:
        return (row[0] for row in self.with_values())

    def rename_labels(self, given: str | Path | Mapping[str, str]) -> "FileSource":
        """Give labels the classes that a table says, or a JSON or TOML file with one; return this source."""
        self._label_map = LabelMap.of(given)
        return self

    def with_values(self) -> Iterator[ValuedRow]:
        """Yield every row with its cells in the columns ``values``."""
        self._empty = 0
        streams = [self._rows(table) for table in self._tables]
        return _in_turn(streams) if self._in_turn else itertools.chain.from_iterable(streams)

    def _rows(self, table: Table) -> Iterator[ValuedRow]:
        columns = self.columns
        index = {name: position for position, name in enumerate(table.columns)}
        text_at = index[columns.text]
        pair_at = None if columns.text_pair is None else index[columns.text_pair]
        label_at = None if columns.label is None or not self._labelled else index[columns.label]
        values_at = [index[name] for name in self.values]
        longest = text_limit_bytes()
        renamed, classes = self._label_map, table.classes.get(columns.label or "", ())
        origin = RowOrigin(table.name, table.unit, () if renamed else classes)
        number, at, cells = 0, text_at, cast(Cells, ())
        with faults_of(table.name, "examples"):
            try:
                for number, cells in table.rows():
                    at = text_at
                    text = sentence(words_of(cells[at])) if self._tagged else text_of(cells[at]).strip()
                    pair = None if pair_at is None else text_of(cells[at := pair_at]).strip()
                    if len(text) > longest or (pair and len(pair) > longest):
                        raise too_long(f"{table.name}, {table.unit} {number}", longest)
                    if not text or pair == "":
                        self._empty += 1
                        if not self.keep_empty:
                            continue
                    label, tags = None, None
                    if label_at is not None and self._tagged:
                        tags = tuple(words_of(cells[at := label_at]))
                    elif label_at is not None:
                        label = (label_of(cells[at := label_at]) or "").strip()
                    values = [(label_of(cells[at := one]) or "").strip() for one in values_at if not self._tagged]
                    row = Example(text, pair, label, tags, origin, number)
                    _check_labels(row, columns.label)
                    yield renamed.apply(row, classes) if renamed else row, values
            except StructureError as error:
                raise _structure_error(table, number, at, cells[at], columns, error) from None

    def describe(self) -> str:
        """Return one line to show: ``train.tsv: TSV without quoting, text = sentence, label = label``."""
        named = self._tables[0].named
        kind, comma, rest = self.format.partition(",")
        shown = [FORMATS.get(kind, kind) + comma + rest + ("" if named else ", no header")]
        used = {"text": self.columns.text, "pair": self.columns.text_pair}
        used |= {"label": self.columns.label} if self._labelled else {}
        if not self._tables[0].fixed:
            shown += [f"{what} = {'' if named else 'column '}{name}" for what, name in used.items() if name]
        notes = Counter({f"rows without text{'' if self.keep_empty else ', skipped'}": self._empty})
        for table in self._tables:
            notes.update(table.notes)
        shown += [f"{note}: {count:,}" for note, count in notes.items() if count]
        return f"{self.name}: {', '.join(shown)}"


def _check_labels(row: Example, column: str | None) -> None:
    if row.label == "":
        raise CompressError(
            f"{row.where} has no label in column {column!r}: remove the row or name another column with --label-column."
        )
    if row.tags is not None and len(row.tags) != len(row.words):
        raise CompressError(f"{row.where} has {len(row.tags)} tags for {len(row.words)} words: correct that row.")


def _structure_error(
    table: Table, number: int, at: int, value: Cell, columns: Columns, error: StructureError
) -> CompressError:
    name = table.columns[at]
    option = {columns.text: "text", columns.text_pair: "text-pair"}.get(name, "label")
    parts = [path for path in inner_fields(name, value) if not path.rpartition(".")[2].isdecimal()]
    advice = (
        f"a part of it with --{option}-column: {some_of(parts)}" if parts else f"another one with --{option}-column"
    )
    return CompressError(f"{table.name}, {table.unit} {number} has {error}, in column {name!r}: name {advice}.")


class ExampleSource(TextSource):
    """Examples in memory as a source, without their labels unless it is ``labelled``."""

    def __init__(self, examples: Sequence[Example], name: str, *, labelled: bool = False) -> None:
        self.examples = examples
        self.name = name
        self.labelled = labelled
        self.identity = frozenset({content_sha256(examples)})

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples) if self.labelled else map(without_label, self.examples)

    def describe(self) -> str:
        return f"{self.name}: {len(self.examples):,} rows"


class JoinedSource(TextSource):
    """Several sources read in turn, a row from each, each with its own columns and exclusions."""

    def __init__(self, sources: Sequence[TextSource]) -> None:
        self.sources = sources
        self.name = " + ".join(source.name for source in sources)
        self.identity = frozenset().union(*(source.identity for source in sources))

    def __iter__(self) -> Iterator[Example]:
        return _in_turn([iter(source) for source in self.sources])

    def without(self, keys: frozenset[bytes]) -> "JoinedSource":
        return JoinedSource([source.without(keys) for source in self.sources])

    def describe(self) -> str:
        return "; ".join(source.describe() for source in self.sources)


def join_sources(sources: Sequence[TextSource]) -> TextSource:
    """Return several pools as one."""
    return sources[0] if len(sources) == 1 else JoinedSource(sources)


def _in_turn(streams: list[Iterator[Item]]) -> Iterator[Item]:
    while streams:
        for stream in list(streams):
            item = next(stream, None)
            if item is None:
                streams.remove(stream)
            else:
                yield item


def open_source(
    data: Any,
    *,
    role: str,
    labelled: bool,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    format: str | None = None,
    values: Sequence[str] = (),
) -> FileSource:
    """Open whatever holds rows, and find its columns.

    Args:
        data: a path, a pattern such as ``sentiment.dev.*``, a folder of Parquet files, a URI of any of them such as
            ``s3://bucket/part-*.parquet``, or the name of a data set of the Hugging Face hub; or a list of texts, of
            pairs or of dicts, a data set of the library ``datasets``, or a frame of pandas, polars or Arrow.
        role: ``train``, ``unlabeled``, ``validation`` or ``test``; picks the split of a source that holds several.
        labelled: whether every row must have a label; without, labels are not read.
        text_column: a column's name, or its number from 0 in a file without a header; so are the next two.
        format: how the file is written, if it is not to be found out.
        values: further columns, which :meth:`FileSource.with_values` reads.

    Raises:
        CompressError: for anything about the data that the user can put right.
    """
    given = Columns(text_column or "", text_pair_column, label_column)
    wanted = [name for name in (text_column, text_pair_column, label_column, *values) if name]
    in_turn = True
    if not isinstance(data, str | Path):
        tables = [value_table(data, role=role, labelled=labelled, wanted=wanted)]
    elif not os.path.lexists(data) and is_hub_name(str(data)):
        tables = [read_hub(str(data), role)]
    else:
        files, in_turn = find_files(str(data))
        tables = [_open_file(file, role=role, labelled=labelled, format=format, wanted=wanted) for file in files]
        tables = [table for table in tables if not table.empty] or tables[:1]
    name = tables[0].name
    if len(tables) > 1:
        name = printable_name(f"{Path(without_secrets(str(data))).name} ({len(tables)} files)")
    odd = next((table for table in tables if table.columns != tables[0].columns), None)
    if odd is not None:
        raise CompressError(f"{odd.name} and {tables[0].name} have different columns: give files of one kind.")
    with faults_of(name, "examples"):
        columns, tagged = _columns(tables[0], given, labelled)
        _check_values(tables[0], columns, values)
    options: dict[str, Any] = {"tagged": tagged, "values": values, "in_turn": in_turn}
    return FileSource(tables, columns, name=name, labelled=labelled, **options)


def _open_file(file: DataFile, **options: Any) -> Table:
    path, place = file
    with faults_of(printable_name(path), "examples"):
        table = read_table(path, **options)
        if place:
            copy = printable_name(path.resolve())
            table.identity = frozenset(one.replace(copy, printable_name(place)) for one in table.identity)
        return table


def _columns(table: Table, given: Columns, labelled: bool) -> tuple[Columns, bool]:
    """Return what the columns hold, and whether that is words with tags."""
    if table.fixed and given == Columns(""):
        if labelled and "label" not in table.columns:
            raise CompressError(
                f"{table.name} holds texts without labels, but labels are needed here: give labelled data."
            )
        return Columns("text", None, "label" if "label" in table.columns else None), table.tagged
    if len(table.columns) > _MOST_COLUMNS:
        raise CompressError(
            f"{table.name} has {len(table.columns):,} columns, and at most {_MOST_COLUMNS:,} are read: leave some out."
        )
    sample = table.sample()
    if not sample:
        raise CompressError(f"{table.name} is empty: it has a header but no rows.")
    names = table.columns
    columns = choose_columns(names, sample, named=table.named, labelled=labelled, source=table.name, given=given)
    return columns, table.tagged or are_tagged(names, sample, columns, labelled)


def _check_values(table: Table, columns: Columns, values: Sequence[str]) -> None:
    """Refuse further columns that are not there, there twice, or texts."""
    for name in values:
        if (count := table.columns.count(name)) != 1:
            raise CompressError(
                f"{table.name} has {'two columns' if count else 'no column'} {name!r}; it has "
                f"{', '.join(table.columns[:20])}: give the name of one.{did_you_mean(name, table.columns)}"
            )
        if name in (columns.text, columns.text_pair):
            raise CompressError(
                f"{table.name}: the column {name!r} holds the text, and no values: name the text with --text-column."
            )


def read_examples(source: TextSource) -> list[Example]:
    """Read a set into memory.

    Raises:
        CompressError: when it is empty, or all rows have the same label or score, which can judge no model.
    """
    examples = list(source)
    if not examples:
        raise CompressError(f"{source.name} has no row with text: give a file with at least one.")
    labels = infer_labels(examples)
    found = encode_scores(examples, name=source.name) if labels is None else labels
    if len(set(found)) == 1:
        one, several = ("score", "scores") if labels is None else ("class", "classes")
        raise CompressError(
            f"{source.name} has only one {one}, {found[0]!r}, in its {len(examples):,} rows: give rows of two or more "
            f"{several}, or name another column with --label-column."
        )
    return examples
