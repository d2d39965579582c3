"""Sources of texts and labelled rows: whatever a user has, opened once at the door of a stage."""

import glob
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from compress.arrays import np
from compress.data.columns import (
    Cells,
    LabelReader,
    StructureError,
    are_tagged,
    choose_columns,
    inner_fields,
    label_of,
    label_reader,
    text_of,
    usual,
    words_of,
)
from compress.data.entity_spans import COLUMNS, are_spans, tagged_text
from compress.data.examples import (
    Columns,
    Example,
    Renaming,
    RowOrigin,
    content_sha256,
    finite_number,
    infer_labels,
    row_key,
    row_keys,
    sentence,
    without_label,
)
from compress.data.examples import label_map as read_label_map
from compress.data.formats.objects import is_hub_name, object_table, read_hub
from compress.data.formats.table import Table
from compress.data.formats.text_files import FORMATS, read_table
from compress.errors import CompressError, did_you_mean, refuse, some_of
from compress.escaping import is_uri, local_path, without_secrets
from compress.files import faults_of, printable_name, text_limit_bytes, too_long
from compress.files.remote import Remote, parquet_parts
from compress.progress import logger

Item = TypeVar("Item")
DataFile: TypeAlias = tuple[Path, str]  # where it lies, and the URI that it was copied from, if it was
MOST_IN_TURN = 250  # files that are open at the same time; systems allow a thousand
MOST_LISTED = 200_000  # files below a folder
_MOST_COLUMNS = 10_000
_END = object()
Kind: TypeAlias = Literal["text", "words", "spans"]


@runtime_checkable
class TextSource(Protocol):
    """A stream of labelled or unlabelled examples; every ``iter()`` starts a new pass.

    ``identity`` names the files or rows that are read: two sources that share a part of it hold the same data. A class
    that derives from this one defines ``name``, ``identity`` and ``__iter__``; the other methods follow from them.
    """

    name: str
    identity: frozenset[Any]
    of_words: bool = False  # whether rows are words already

    def __iter__(self) -> Iterator[Example]: ...

    def texts(self) -> Iterator[str | tuple[str, str]]:
        """Yield the texts, or pairs of texts, of a pass."""
        return (row.text if row.text_pair is None else (row.text, row.text_pair) for row in self)

    def without(self, keys: frozenset[bytes]) -> "TextSource":
        """Return this source without the rows that have one of these keys; nothing is read yet."""
        return Subset(self, excluded=keys)

    def read_by(self, read: Callable[[Example], Example]) -> "TextSource":
        """Return this source with its rows as ``read`` gives them, but for those that are words already."""
        return self if self.of_words else Subset(self, read=read)

    def keys(self) -> "np.ndarray":
        """Return the :func:`compress.data.row_keys` of all rows, uint64 ``[N]``; reads them once."""
        return row_keys(self)

    def sample(self, rows: int) -> "TextSource":
        """Return ``rows`` rows spread evenly over this source; reads it once, to count.

        The first rows of a file are rarely like the rest: pools are sorted by date, label or origin.
        """
        total = sum(1 for _ in self)
        return self if total <= rows else Subset(self, spread=(rows, total))

    def count(self) -> int | None:
        """Return the number of rows; reads them once. None where reading them would take long."""
        return sum(1 for _ in self)

    def describe(self) -> str:
        """Return one line to show: the name, and how the rows were read."""
        return self.name


def is_spread(number: Any, rows: int, total: int) -> Any:
    """Tell of an item's number, or of each number of an array, whether it is one of ``rows`` of ``total`` items."""
    return number * rows // total != (number - 1) * rows // total


class Subset(TextSource):
    """Rows of another source: ``spread`` rows of so many, without the ``excluded`` keys, and as ``read`` gives them."""

    def __init__(
        self,
        source: TextSource,
        *,
        spread: tuple[int, int] | None = None,
        excluded: frozenset[bytes] = frozenset(),
        read: Callable[[Example], Example] | None = None,
    ) -> None:
        self.source = source
        self.read = read
        self.spread = spread
        self.excluded = excluded
        self.name = f"{source.name} ({spread[0]:,} of {spread[1]:,} rows)" if spread else source.name
        self.identity, self.of_words = source.identity, source.of_words or read is not None

    def __iter__(self) -> Iterator[Example]:
        examples, spread = map(self.read, self.source) if self.read else iter(self.source), self.spread
        if spread:
            examples = (example for number, example in enumerate(examples) if is_spread(number, *spread))
        if self.excluded:
            return (example for example in examples if row_key(example) not in self.excluded)
        return examples

    def describe(self) -> str:
        said = self.source.describe()
        return said if self.name == self.source.name else self.name + said.removeprefix(self.source.name)


class FileSource(TextSource):
    """Examples streamed from one or more files.

    Several files are read ``in_turn``, a row from each, so that the start of a stream holds all of
    them; or one after the other, which keeps one of them open. Rows without text are counted, and skipped unless
    ``keep_empty``; ``describe()`` says how many were met. ``renamed`` gives a row the classes of its labels.

    ``kind`` says what the cells hold: texts, ``words`` and their tags, or texts and the ``spans`` of entities.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        columns: Columns,
        *,
        name: str,
        labelled: bool,
        kind: Kind = "text",
        reader: LabelReader | None = None,
        values: Sequence[str] = (),
        query: str | None = None,
        in_turn: bool = True,
    ) -> None:
        self.name = name
        self.format = tables[0].format
        self.columns = columns
        self.identity = frozenset(place for table in tables for place in table.identity)
        self._values, self._query = tuple(values), query
        self._labelled = labelled
        self._kind, self.of_words = kind, kind == "words"
        self._reader = reader
        self.renamed: Renaming | None = None
        self._tables = tables
        self._in_turn = in_turn
        self.keep_empty = False
        self._empty = 0

    def __iter__(self) -> Iterator[Example]:
        return self._pass()

    def texts(self) -> Iterator[str | tuple[str, str]]:
        """Yield them without examples, which take longer to make than a small student to answer."""
        return self._pass(plain=True)

    def _pass(self, *, plain: bool = False) -> Iterator[Any]:
        self._empty = 0
        streams = [self._rows(table, plain) for table in self._tables]
        in_turn = self._in_turn and len(streams) > 1
        return _in_turn(streams) if in_turn else itertools.chain.from_iterable(streams)

    def _rows(self, table: Table, plain: bool) -> Iterator[Any]:
        columns = self.columns
        index = {name: position for position, name in enumerate(table.columns)}
        text_at = index[columns.text]
        pair_at = None if columns.text_pair is None else index[columns.text_pair]
        label_at = None if columns.label is None or not self._labelled else index[columns.label]
        values_at = [index[name] for name in self._values]
        query_at = None if self._query is None else index[self._query]
        longest = text_limit_bytes()
        renamed, classes = self.renamed, table.classes.get(columns.label or "", ())
        each = () if renamed else columns.each
        origin = RowOrigin(table.name, table.unit, each or (() if renamed else classes), bool(each))
        number, at, cells = 0, text_at, cast(Cells, ())
        with faults_of(table.name, "examples"):
            try:
                for number, cells in table.rows():
                    at = text_at
                    given = sentence(words_of(cells[at])) if self.of_words else text_of(cells[at])
                    text, label, labels, tags = given.strip(), None, None, None
                    if self._kind == "spans" and label_at is not None and text and cells[label_at] is not None:
                        text, tags = tagged_text(given, cells[label_at], f"{table.name}, {table.unit} {number}")
                    pair = None if pair_at is None else text_of(cells[at := pair_at]).strip()
                    if len(text) > longest or (pair and len(pair) > longest):
                        raise too_long(f"{table.name}, {table.unit} {number}", longest)
                    if not text or pair == "":
                        self._empty += 1
                        if not self.keep_empty:
                            continue
                    if plain:
                        yield text if pair is None else (text, pair)
                        continue
                    if label_at is not None and self.of_words:
                        tags = tuple(words_of(cells[at := label_at]))
                    elif label_at is not None and self._kind == "text" and self._reader:
                        at = label_at
                        label, labels = self._reader.read(cells)
                    values = tuple((label_of(cells[at := place]) or "").strip() for place in values_at)
                    given = "" if tags is not None or given == text else given
                    query = "" if query_at is None else (label_of(cells[at := query_at]) or "").strip()
                    row = Example(text, pair, label, tags, labels, origin, number, values, given, query)
                    if label_at is not None and not (label or row.tags is not None or labels is not None):
                        raise CompressError(
                            f"{row.where} has no labels in column {columns.label!r}, and others have: remove the row, "
                            "or give an empty list where none applies."
                            if self._kind == "spans" or (self._reader and self._reader.several)
                            else f"{row.where} has no label in column {columns.label!r}: remove the row or name "
                            "another column with --label-column."
                        )
                    if tags is not None and len(tags) != len(row.words):
                        raise CompressError(
                            f"{row.where} has {len(tags)} tags for {len(row.words)} words: correct that row."
                        )
                    yield renamed(row, classes) if renamed else row
            except StructureError as error:
                raise _structure_error(table, number, at, cells[at], columns, error) from None

    def describe(self) -> str:
        """Return one line to show: ``train.tsv: TSV without quoting, text = sentence, label = label``."""
        named = self._tables[0].named
        kind, comma, rest = self.format.partition(",")
        shown = [FORMATS.get(kind, kind) + comma + rest + ("" if named else ", no header")]
        used = {"text": self.columns.text, "pair": self.columns.text_pair}
        if self._labelled:
            used |= {
                "labels" if self._reader and self._reader.several else "label": ", ".join(self.columns.each)
                or self.columns.label
            }
        if not self._tables[0].fixed:
            shown += [f"{what} = {'' if named else 'column '}{name}" for what, name in used.items() if name]
        notes = Counter({f"rows without text{'' if self.keep_empty else ', skipped'}": self._empty})
        for table in self._tables:
            notes.update(table.notes)
        shown += [f"{note}: {count:,}" for note, count in notes.items() if count]
        return f"{self.name}: {', '.join(shown)}"


def _structure_error(
    table: Table, number: int, at: int, value: Any, columns: Columns, error: StructureError
) -> CompressError:
    name = error.column or table.columns[at]
    column = {columns.text: "--text-column", columns.text_pair: "--text-pair-column"}.get(name, "--label-column")
    parts = [path for path in inner_fields(name, value) if not path.rpartition(".")[2].isdecimal()]
    others = f"a part of it with {column}: {some_of(parts)}" if parts else f"another one with {column}"
    advice = "correct it" if error.of_row else f"name {others}"
    return CompressError(f"{table.name}, {table.unit} {number} has {error}, in column {name!r}: {advice}.")


class ExampleSource(TextSource):
    """Examples in memory as a source, without their labels unless it is ``labelled``."""

    def __init__(self, examples: Sequence[Example], name: str, *, labelled: bool = False) -> None:
        self.examples = examples
        self.name = name
        self.labelled, self.of_words = labelled, True
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
        self.of_words = all(source.of_words for source in sources)

    def __iter__(self) -> Iterator[Example]:
        return _in_turn([iter(source) for source in self.sources])

    def without(self, keys: frozenset[bytes]) -> "JoinedSource":
        return JoinedSource([source.without(keys) for source in self.sources])

    def read_by(self, read: Callable[[Example], Example]) -> "JoinedSource":
        return JoinedSource([source.read_by(read) for source in self.sources])

    def describe(self) -> str:
        return "; ".join(source.describe() for source in self.sources)


def join_sources(sources: Sequence[TextSource]) -> TextSource:
    return sources[0] if len(sources) == 1 else JoinedSource(sources)


def _in_turn(streams: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """Yield an item of each stream, again and again, until all have ended."""
    rounds = itertools.zip_longest(*streams, fillvalue=_END)
    return (cast(Item, item) for items in rounds for item in items if item is not _END)


@dataclass(frozen=True)
class ColumnNames:
    """How columns are found: their names, or their numbers from 0 in a file without a header.

    Args:
        label_column: where every label has a column of 0 and 1, their names with a comma between them.
        label_separator: what stands between the labels of a row, such as ``|``; without, text is one label.
        query_column: where the query of a row is, whose rows are ranked; a column of text too.
    """

    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None
    query_column: str | None = None


def open_source(
    data: Any,
    *,
    role: str,
    labelled: bool,
    format: str | None = None,
    values: Sequence[str] = (),
    **columns: str | None,
) -> FileSource:
    """Open whatever holds rows, and find its columns.

    Args:
        data: a path, a pattern such as ``sentiment.dev.*``, a folder of Parquet files, a URI of any of them such as
            ``s3://bucket/part-*.parquet``, or the name of a data set of the Hugging Face hub; or a list of texts, of
            pairs or of dicts, a data set of the library ``datasets``, or a frame of pandas, polars or Arrow.
        role: ``train``, ``unlabeled``, ``validation`` or ``test``; picks the split of a source that holds several.
        labelled: whether every row must have a label; without, labels are not read.
        format: how the file is written, if it is not to be found out.
        values: further columns, the ``values`` of its rows.
        columns: those of :class:`ColumnNames`.

    Raises:
        CompressError: for anything about the data that the user can put right.
    """
    names = ColumnNames(**columns)
    given = Columns(names.text_column or "", names.text_pair_column, names.label_column)
    parts = tuple(filter(None, map(str.strip, (names.label_column or "").split(","))))
    query = (names.query_column,) if names.query_column else ()
    wanted = [name for name in (given.text, given.text_pair, given.label, *parts, *values, *query) if name]
    in_turn = True
    if not isinstance(data, str | Path):
        tables = [object_table(data, role=role, labelled=labelled, wanted=wanted)]
    elif not os.path.lexists(data) and is_hub_name(str(data)):
        tables = [read_hub(str(data), role, wanted)]
    else:
        files, in_turn = find_files(str(data))
        tables = [_open_file(*file, role=role, labelled=labelled, format=format, wanted=wanted) for file in files]
        tables = [table for table in tables if not table.empty] or tables[:1]
    name = tables[0].name
    if len(tables) > 1:
        name = printable_name(f"{Path(without_secrets(str(data))).name} ({len(tables)} files)")
    if odd := [table.name for table in tables if table.columns != tables[0].columns]:
        raise CompressError(f"{odd[0]} and {tables[0].name} have different columns: give files of one kind.")
    if len(parts) > 1 and given.label not in tables[0].columns:
        twice = next((part for part in parts if parts.count(part) > 1), "")
        refuse(
            (bool(twice), f"--label-column names the column {twice!r} twice: name each once."),
            (
                bool(names.label_separator),
                f"--label-column names {len(parts)} columns of 0 and 1, which no --label-separator cuts: leave it out.",
            ),
        )
        given = replace(given, label=parts[0], each=parts)
    with faults_of(name, "examples"):
        chosen, kind, reader = _columns(tables[0], given, labelled, names.label_separator or "")
        for column in (*values, *query):
            count, known = tables[0].columns.count(column), ", ".join(tables[0].columns[:20])
            found = f"has {'two columns' if count else 'no column'} {column!r}; it has {known}: give the name of one."
            used = f"the column {column!r} holds the text, and no values: name the text with --text-column."
            refuse(
                (count != 1, f"{tables[0].name} {found}{did_you_mean(column, tables[0].columns)}"),
                (column in values and column in (chosen.text, chosen.text_pair), f"{tables[0].name}: {used}"),
            )
    reading: Any = {"kind": kind, "reader": reader, "values": values, "query": names.query_column, "in_turn": in_turn}
    return FileSource(tables, chosen, name=name, labelled=labelled, **reading)


def _open_file(path: Path, place: str, **options: Any) -> Table:
    with faults_of(printable_name(path), "examples"):
        table = read_table(path, **options)
        if place:
            copy = printable_name(path.resolve())
            table.identity = frozenset(one.replace(copy, printable_name(place)) for one in table.identity)
        return table


def _columns(table: Table, given: Columns, labelled: bool, separator: str) -> tuple[Columns, Kind, LabelReader | None]:
    """Return which columns hold what, its kind, and what reads the labels of a row."""
    if table.fixed and given == Columns(""):
        refuse(
            (
                labelled and "label" not in table.columns,
                f"{table.name} holds texts without labels, but labels are needed here: give labelled data.",
            )
        )
        kind: Kind = "words" if table.tagged else "text"
        columns = Columns("text", None, "label" if "label" in table.columns else None)
        return columns, kind, label_reader(table.columns, [], columns, "")
    wide, many = len(table.columns) > _MOST_COLUMNS, f"has {len(table.columns):,} columns"
    sample = [] if wide else table.sample()
    refuse(
        (wide, f"{table.name} {many}, and at most {_MOST_COLUMNS:,} are read: leave some out."),
        (not sample, f"{table.name} is empty: it has a header but no rows."),
    )
    names = table.columns
    columns = choose_columns(names, sample, named=table.named, labelled=labelled, source=table.name, given=given)
    if labelled and columns.label and _holds_spans(table, sample, columns.label):
        return columns, "spans", None
    if table.tagged or are_tagged(names, sample, columns, labelled):
        return columns, "words", None
    return columns, "text", label_reader(names, sample, columns, separator) if labelled else None


def _holds_spans(table: Table, sample: Sequence[Cells], label: str) -> bool:
    """Tell whether a column has lists of spans; where the sample has only empty ones, its first other row says it."""
    place = table.columns.index(label)
    cells = [row[place] for row in sample if row[place] is not None]
    if cells and all(cell == [] for cell in cells):
        cells = list(itertools.islice((row[place] for _, row in table.rows() if row[place]), 1))
        return are_spans(cells) or (not cells and usual(label) in COLUMNS)
    return are_spans(cells)


def read_examples(source: TextSource) -> list[Example]:
    """Read a set into memory.

    Raises:
        CompressError: when it is empty, or all rows have the same label or score, which can judge no model.
    """
    examples = list(source)
    refuse((not examples, f"{source.name} has no row with text: give a file with at least one."))
    labels, sets = infer_labels(examples), any(row.has_set for row in examples)
    found: Sequence[Any] = [finite_number(row.label or "") for row in examples] if labels is None else labels
    if sets:
        found = [" ".join(sorted(row.labels or ())) or "none" for row in examples]
    if len(set(found)) == 1:
        one, several = ("score", "scores") if labels is None else ("class", "classes")
        one, several = ("set of labels", "sets") if sets else (one, several)
        raise CompressError(
            f"{source.name} has only one {one}, {found[0]!r}, in its {len(examples):,} rows: give rows of two or more "
            f"{several}, or name another column with --label-column."
        )
    return examples


def find_files(typed: str) -> tuple[list[DataFile], bool]:
    """Return the files in the order of their names, and whether they are read in turn, a row from each.

    So are those of a pattern, up to 250. More of them, and those of a folder, are Parquet files and are read one after
    the other: a group of rows of each in memory, and all of them open, would be too much.

    Raises:
        CompressError: nothing matches a pattern, or too much.
    """
    if is_uri(typed := local_path(typed)):
        remote = Remote.at(typed)
        found, folder = remote.files()
        _check_number([file.path for file in found], remote.uri)
        files = list(zip(remote.copied(found), [file.uri for file in found], strict=True))
    else:
        is_pattern = not os.path.lexists(typed) and any(mark in typed for mark in "*?[")
        names = sorted(glob.glob(typed)) if is_pattern else [typed]
        refuse((not names, f"No file matches {typed!r}: check the pattern."))
        folder = any(map(os.path.isdir, names))
        paths = [path for name in names for path in (_parts(Path(name)) if os.path.isdir(name) else [Path(name)])]
        _check_number([path.name for path in paths], typed)
        files = [(path, "") for path in paths]
    return files, not folder and len(files) <= MOST_IN_TURN


def _check_number(names: Sequence[str], typed: str) -> None:
    refuse(
        (
            len(names) > MOST_IN_TURN and not all(name.endswith(".parquet") for name in names),
            f"{len(names):,} files match {typed!r}, and at most {MOST_IN_TURN} are read at a time unless all are named "
            "*.parquet: check the pattern.",
        )
    )


def _parts(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder and the folders in it; none of them may be a link that leaves it."""

    def fail(error: OSError) -> None:
        raise error

    places = (os.path.join(place, name) for place, _, files in os.walk(folder, onerror=fail) for name in files)
    names = [os.path.relpath(place, folder) for place in itertools.islice(places, MOST_LISTED + 1)]
    refuse(
        (
            len(names) > MOST_LISTED,
            f"{printable_name(folder)} holds more than {MOST_LISTED:,} files: name a folder in it.",
        ),
        (
            {"state.json", "dataset_dict.json"} & set(names),
            f"{printable_name(folder)} was written by save_to_disk of the library datasets: write splits as Parquet, "
            "by datasets.load_from_disk(...).to_parquet('train.parquet').",
        ),
    )
    parts = [folder / name for name in parquet_parts(printable_name(folder), names)]
    if outside := [part for part in parts if not part.resolve().is_relative_to(folder.resolve())]:
        raise CompressError(f"{printable_name(outside[0])} is a link that leaves its folder: name the file itself.")
    return parts


def open_rows(data: Any, *, role: str, label_map: Any = None, **columns: Any) -> TextSource:
    """Open labelled rows.

    Args:
        data: what :func:`compress.data.open_source` opens, a list of examples or of ``pathlib.Path``, or a source that
            is open, which is returned.
        role: ``train``, ``validation`` or ``test``.
        label_map: the classes of its labels, as a table or a JSON or TOML file with one.
        columns: ``text_column``, ``text_pair_column``, ``label_column``, ``label_separator``, ``format``.
    """
    if isinstance(data, TextSource):
        return data
    if _are(Path, data):
        return join_sources([open_rows(path, role=role, label_map=label_map, **columns) for path in data])
    if not _are(Example, data):
        source = open_source(data, role=role, labelled=True, **columns)
        source.renamed = read_label_map(label_map) if label_map else None
        return source
    if number := next((number for number, row in enumerate(data, 1) if not row.is_labelled), 0):
        raise CompressError(f"Row {number} of {role} has no label, and labels are needed here: give it one.")
    if label_map:
        renamed = read_label_map(label_map)
        data = [renamed(row, row.origin.classes if row.origin else ()) for row in data]
    return ExampleSource(data, role, labelled=True)


def load_rows(data: Any, *, role: str, **columns: Any) -> list[Example]:
    """Read labelled rows into memory and say how they were understood; None gives no rows. See :func:`open_rows`."""
    if data is None:
        return []
    source = open_rows(data, role=role, **columns)
    examples = read_examples(source)
    logger.info("%s: %s", role, source.describe())
    return examples


def open_text(
    *data: Any,
    role: str | None = "unlabeled",
    beside: object = None,
    rows: int | None = None,
    keep_empty: bool = False,
    read: Callable[[Example], Example] | None = None,
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
        read: makes rows of plain text what a model reads (:meth:`compress.tasks.Task.row`).
        columns: as for :func:`open_rows`.
    """
    left_out = {"label_map", "label_separator", "query_column", "label_column" if beside is not None else ""}
    names = {key: value for key, value in columns.items() if key not in left_out}
    data = tuple(item for one in data for item in (one if _are(Path, one) else [one]))
    sources, plain = list[TextSource](), list(map(_is_plain, data))
    for item, is_plain in zip(data, plain, strict=True):
        source: TextSource
        if isinstance(item, TextSource):
            source = item
        elif _are(Example, item):
            source = ExampleSource(item, role or "unlabeled")
        else:
            apart = is_plain and (beside is not None or not all(plain))
            file = open_source(item, role="unlabeled", labelled=False, **({} if apart else names))
            if apart and file.format.startswith("tsv"):  # a table for all that; the format is that of other files
                file = open_source(item, role="unlabeled", labelled=False, **{**names, "format": None})
            file.keep_empty = keep_empty
            source = file
        sources.append(source.read_by(read) if read else source)
        if role:
            logger.info("%s: %s", role, sources[-1].describe())
    pool = join_sources(sources)
    return pool.sample(rows) if rows else pool


def _are(kind: type, data: Any) -> bool:
    return isinstance(data, Sequence) and bool(data) and isinstance(data[0], kind)


def _is_plain(data: Any) -> bool:
    return isinstance(data, str | Path) and without_secrets(str(data)).removesuffix(".gz").endswith(".txt")
