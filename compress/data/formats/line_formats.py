"""Formats of one line a row, or one line a word.

Plain text: a text a line; labels from ``X_labels.txt`` beside ``X_text.txt``, or from a numeric suffix.

Label first: TREC, fastText (``__label__``) and sentence polarity files.

Trees of SST: the leaves are the sentence, the number of the root its label.

CoNLL-U: the words (column 2) with their universal parts of speech (column 4), an empty line after each sentence. The
surface form of a contraction (``1-2``) is skipped for its words, and so are the empty nodes of enhanced dependencies
(``1.1``). https://universaldependencies.org/format.html

CoNLL-2003: the first column and the last, with spaces or tabs between; a document begins with ``-DOCSTART-``.
https://www.clips.uantwerpen.be/conll2003/ner/
"""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from compress.data.formats.table import Lines, Row, Table
from compress.errors import CompressError

LONGEST_SENTENCE = 100_000
LABEL_FIRST = re.compile(r"(-?\d+|__label__\S+) +(.*)")
TREE = re.compile(r"\(\d+ .*\)\s*")
_LEAF = re.compile(r"\([^\s()]+ ([^()]+)\)")
# Lines whose last column is a tag of a named entity, inside, outside or at its beginning.
CONLL = re.compile(r"-DOCSTART-.*\s*|\S+([ \t]\S*){0,3}[ \t](O|[BIESLU]-\S+)\s*")
_NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")


def read_plain_text(lines: Lines, labelled: bool) -> Table:
    path = lines.path
    if not labelled:
        return _by_line(lines, "text", lambda number, line: [line.rstrip("\n")], columns=("text",))
    beside = path.with_name(re.sub(r"_text(\.|$)", r"_labels\1", path.name))
    if beside != path and beside.exists():
        labels = Lines(beside)

        def rows() -> Iterator[Row]:
            for number, (text, label) in enumerate(itertools.zip_longest(lines, labels), start=1):
                if text is None or label is None:
                    short, long = (lines, labels) if text is None else (labels, lines)
                    raise CompressError(
                        f"{short.name} ends after {number - 1} lines but {long.name} goes on: they must "
                        "have one line each."
                    )
                yield number, (text.rstrip("\n"), label.strip())

        return Table(lines.name, f"text beside {labels.name}", ("text", "label"), rows, fixed=True)
    label = Path(path.name.removesuffix(".gz")).suffix[1:]
    if label.isdigit():
        return _by_line(lines, f"text of label {label}", lambda number, line: [line.rstrip("\n"), label])
    raise CompressError(
        f"{lines.name} is plain text, one text a line, but labels are needed here: give CSV, TSV, JSON "
        "Lines or Parquet with a label column; text without labels is for the --unlabeled of other commands."
    )


def read_label_first(lines: Lines, labelled: bool) -> Table:
    def cells(number: int, line: str) -> list[str] | None:
        if not line.strip():
            return None
        match = LABEL_FIRST.fullmatch(line.rstrip("\n"))
        if match is None:
            raise CompressError(f"{lines.name}, line {number} does not start with a label and a space: correct it.")
        if match[2].startswith("__label__"):
            raise CompressError(
                f"{lines.name}, line {number} has several labels, and a text has one here: keep one of them."
            )
        return [match[2], match[1].removeprefix("__label__")]

    return _by_line(lines, "label-first", cells)


def read_trees(lines: Lines, labelled: bool) -> Table:
    def cells(number: int, line: str) -> list[str] | None:
        if not line.strip():
            return None
        if not TREE.fullmatch(line.rstrip("\n")) or line.count("(") != line.count(")"):
            raise CompressError(f"{lines.name}, line {number} is not a tree such as (3 (2 a) (4 b)): correct it.")
        return [" ".join(_LEAF.findall(line)), line[1 : line.index(" ")]]

    return _by_line(lines, "trees", cells)


def _by_line(
    lines: Lines, form: str, cells: Callable[[int, str], list[str] | None], columns: tuple[str, ...] = ("text", "label")
) -> Table:
    """Return a table of a row a line, of which ``cells`` returns the cells; None where it is no row."""

    def rows() -> Iterator[Row]:
        found = ((number, cells(number, line)) for number, line in enumerate(lines, start=1))
        return ((number, row) for number, row in found if row is not None)

    return Table(lines.name, form, columns, rows, fixed=True)


def read_conllu(lines: Lines, labelled: bool) -> Table:
    def word(number: int, line: str) -> tuple[str, str] | None:
        cells = line.rstrip("\n").split("\t")
        if line[0] == "#" or _NO_WORD.fullmatch(cells[0]):
            return None
        if len(cells) < 2 or not cells[0].isdigit() or not cells[1].strip():
            raise CompressError(
                f"{lines.name}, line {number} is not a line of CoNLL-U, which has a number, a word and eight more "
                "cells with tabs between them: correct it."
            )
        tag = cells[3] if labelled and len(cells) > 3 else "_"
        if labelled and tag in ("_", ""):
            raise CompressError(
                f"{lines.name}, line {number} has no tag in its fourth cell, but labels are needed here: give a "
                "treebank with parts of speech; text without is for the --unlabeled of other commands."
            )
        return cells[1], tag

    return _sentences(lines, "conllu", labelled, word)


def read_conll(lines: Lines, labelled: bool) -> Table:
    def word(number: int, line: str) -> tuple[str, str] | None:
        cells = line.split()
        if labelled and len(cells) < 2:
            raise CompressError(
                f"{lines.name}, line {number} is not a word with its tag in the last column: correct it."
            )
        return None if cells[0] == "-DOCSTART-" else (cells[0], cells[-1])

    return _sentences(lines, "conll", labelled, word)


def _sentences(lines: Lines, form: str, labelled: bool, word: Callable[[int, str], tuple[str, str] | None]) -> Table:
    """Return the sentences of a file, of which ``word`` reads a line that is not empty; None is no word."""

    def rows() -> Iterator[Row]:
        found, first = list[tuple[str, str]](), 0
        for number, line in enumerate(itertools.chain(lines, ["\n"]), start=1):
            if not line.strip():
                if found:
                    yield first, tuple(map(list, zip(*found, strict=True)))[: 1 + labelled]
                found = []
            elif (one := word(number, line)) is not None:
                first = first if found else number
                found.append(one)
                if len(found) > LONGEST_SENTENCE:
                    raise CompressError(
                        f"{lines.name}, line {number} is in a sentence of more than {LONGEST_SENTENCE:,} words: put an "
                        "empty line after each sentence."
                    )

    return Table(lines.name, form, ("text", "label")[: 1 + labelled], rows, fixed=True, tagged=True)
