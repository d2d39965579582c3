"""Rows that were cut because a model does not read all of their tokens: counted where texts are tokenised.

Of a text that is much longer than what is read only a part is tokenised, unless its tokens are to be counted too.

A stage counts within a block, says it in one line and records it::

    with counting() as truncation:
        ...
    truncation.sentence(), truncation.entries()
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from compress.data.examples import Example

READS_NO_MORE = "the model reads no more: split them, or use one that was trained with a larger --max-length"
_COUNTING: ContextVar["Truncation | None"] = ContextVar("counting", default=None)


class Truncation:
    """How many rows were read, and which of them were cut, by the number of tokens that a row may have.

    A row that is read again at the same length counts once. Of streams only the numbers are kept.

    Args:
        tokens: whether :meth:`unread_tokens` is to be exact also of texts that are much longer than what is read.
    """

    def __init__(self, *, tokens: bool = False) -> None:
        self.tokens = tokens
        # No Counter, which takes longer to make than a small student takes for a text.
        self._rows, self._latest = dict[int, dict[Example, int]](), dict[Example, int]()
        self._read, self._cut = dict[int, int](), dict[int, int]()

    def add(self, max_length: int, examples: Sequence[Example], unread: Mapping[int, int]) -> None:
        """Count rows in memory; ``unread`` has how many tokens of a row were not read, by the numbers of the rows."""
        found = {example: unread.get(number, 0) for number, example in enumerate(examples)}
        self._rows.setdefault(max_length, {}).update(found)
        self._latest |= found

    def add_counts(self, max_length: int, rows: int, cut: int) -> None:
        """Count rows of a stream."""
        self._read[max_length] = self._read.get(max_length, 0) + rows
        self._cut[max_length] = self._cut.get(max_length, 0) + cut

    def unread_tokens(self, example: Example) -> int:
        """Return how many tokens of a row in memory were not read, the last time: of a cascade, by who answers."""
        return self._latest.get(example, 0)

    def cut_rows(self, examples: Sequence[Example]) -> int:
        """Return how many rows in memory were cut."""
        return sum(self.unread_tokens(example) > 0 for example in examples)

    def entries(self) -> list[dict[str, int]]:
        """Return ``{"max_length", "rows", "truncated"}`` for each length at which rows were cut."""
        lengths = sorted({*self._rows, *self._read})
        counted = [(n, self._rows.get(n, {}), self._read.get(n, 0), self._cut.get(n, 0)) for n in lengths]
        found = [
            {"max_length": length, "rows": len(rows) + read, "truncated": sum(map(bool, rows.values())) + cut}
            for length, rows, read, cut in counted
        ]
        return [entry for entry in found if entry["truncated"]]

    def notes(self) -> dict[str, Any]:
        """Return what a manifest notes of it; nothing where no row was cut."""
        return {"truncated": entries} if (entries := self.entries()) else {}

    def sentence(self, advice: str = "") -> str:
        """Say how many rows were cut, and what to do; empty where none was."""
        parts = [f"{e['truncated']:,} of {e['rows']:,} rows at {e['max_length']:,} tokens" for e in self.entries()]
        return f"texts longer than what is read were cut: {', '.join(parts)}; {advice}" if parts else ""


def counts_tokens() -> bool:
    """Tell whether the innermost :func:`counting` block counts the tokens that are not read."""
    truncation = _COUNTING.get()
    return truncation is not None and truncation.tokens


def count_rows(max_length: int, examples: Sequence[Example], unread: Mapping[int, int]) -> None:
    """Count rows in the innermost :func:`counting` block, if any; ``unread`` as :meth:`Truncation.add` takes it."""
    if (truncation := _COUNTING.get()) is not None:
        truncation.add(max_length, examples, unread)


def count_stream(max_length: int, rows: int, cut: int) -> None:
    """Count rows of a stream in the innermost :func:`counting` block, if any."""
    if (truncation := _COUNTING.get()) is not None:
        truncation.add_counts(max_length, rows, cut)


@contextmanager
def counting(*, tokens: bool = False) -> Iterator[Truncation]:
    """Count rows that are tokenised within the block, and their ``tokens``; an inner block counts for itself alone."""
    truncation = Truncation(tokens=tokens)
    before = _COUNTING.set(truncation)
    try:
        yield truncation
    finally:
        _COUNTING.reset(before)
