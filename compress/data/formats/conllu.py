"""CoNLL-U treebanks: the words (column 2) with their universal parts of speech (column 4).

The surface form of a contraction (``1-2``) is skipped for its words, and so are the empty nodes of enhanced
dependencies (``1.1``). https://universaldependencies.org/format.html
"""

import itertools
import re
from collections.abc import Iterator

from compress.data.examples import sentence
from compress.data.formats.table import Lines, Row, Table
from compress.errors import CompressError

LONGEST_SENTENCE = 100_000
_NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")


def read_conllu(lines: Lines, labelled: bool) -> Table:
    name = lines.name

    def rows() -> Iterator[Row]:
        words, tags = list[str](), list[str]()
        for number, line in enumerate(itertools.chain(lines, ["\n"]), start=1):
            cells = line.rstrip("\n").split("\t")
            if not line.strip():
                if words:
                    yield number - len(words), (sentence(words), sentence(tags))[: 1 + labelled]
                words, tags = [], []
            elif line[0] != "#" and not _NO_WORD.fullmatch(cells[0]):
                if len(cells) < 2 or not cells[0].isdigit() or not cells[1].strip():
                    raise CompressError(
                        f"{name}, line {number} is not a line of CoNLL-U, which has a number, a word and eight more "
                        "cells with tabs between them: correct it."
                    )
                tag = cells[3] if labelled and len(cells) > 3 else "_"
                if labelled and tag in ("_", ""):
                    raise CompressError(
                        f"{name}, line {number} has no tag in its fourth cell, but labels are needed here: give a "
                        "treebank with parts of speech; text without is for the --unlabeled of other commands."
                    )
                words.append(cells[1])
                tags.append(tag)
                if len(words) > LONGEST_SENTENCE:
                    raise CompressError(
                        f"{name}, line {number} is in a sentence of more than {LONGEST_SENTENCE:,} words: put an empty "
                        "line after each sentence."
                    )

    return Table(name, "conllu", ("text", "label")[: 1 + labelled], rows, fixed=True, tagged=True)
