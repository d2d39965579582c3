"""CoNLL-U treebanks and CoNLL-2003 columns: sentences as words with tags, an empty line after each.

Of CoNLL-U these are the words (column 2) with their universal parts of speech (column 4). The surface form of a
contraction (``1-2``) is skipped for its words, and so are the empty nodes of enhanced dependencies (``1.1``).
https://universaldependencies.org/format.html

Of CoNLL-2003 they are the first column and the last, with spaces or tabs between; a document begins with
``-DOCSTART-``. https://www.clips.uantwerpen.be/conll2003/ner/
"""

import itertools
import re
from collections.abc import Callable, Iterator

from compress.data.formats.table import Lines, Row, Table
from compress.errors import CompressError

LONGEST_SENTENCE = 100_000
_NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")


# Lines whose last column is a tag of a named entity, inside, outside or at its beginning.
CONLL = re.compile(r"-DOCSTART-.*\s*|\S+([ \t]\S*){0,3}[ \t](O|[BIESLU]-\S+)\s*")


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
