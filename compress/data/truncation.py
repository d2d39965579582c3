"""Rows that were cut because a model does not read all of their tokens: counted where texts are tokenised.

A stage counts within a block, says it in one line and records it::

    with counting() as truncation:
        ...
    truncation.sentence(), truncation.entries()
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from compress.data.examples import Example

READS_NO_MORE = "the model reads no more: split them, or use one that was trained with a larger --max-length"
_COUNTING: ContextVar["Truncation | None"] = ContextVar("counting", default=None)


class Truncation:
    """How many rows were read, and which of them were cut, by the number of tokens that a row may have.

    A row that is read again at the same length counts once. Of streams only the numbers are kept.
    """

    def __init__(self) -> None:
        # No Counter, which takes longer to make than a small student takes for a text.
        self._rows, self._latest = dict[int, dict[Example, bool]](), dict[Example, bool]()
        self._read, self._cut = dict[int, int](), dict[int, int]()

    def add(self, max_length: int, examples: Sequence[Example], cut: Collection[int]) -> None:
        """Count rows in memory; ``cut`` are the numbers of those that were cut."""
        found = {example: number in cut for number, example in enumerate(examples)}
        self._rows.setdefault(max_length, {}).update(found)
        self._latest |= found

    def add_counts(self, max_length: int, rows: int, cut: int) -> None:
        """Count rows of a stream."""
        self._read[max_length] = self._read.get(max_length, 0) + rows
        self._cut[max_length] = self._cut.get(max_length, 0) + cut

    def has_cut(self, example: Example) -> bool:
        """Tell whether a row in memory was cut when it was last read: of a cascade, by the member that answers."""
        return self._latest.get(example, False)

    def entries(self) -> list[dict[str, int]]:
        """Return ``{"max_length", "rows", "truncated"}`` for each length at which rows were cut."""
        lengths = sorted({*self._rows, *self._read})
        counted = [(n, self._rows.get(n, {}), self._read.get(n, 0), self._cut.get(n, 0)) for n in lengths]
        found = [
            {"max_length": length, "rows": len(rows) + read, "truncated": sum(rows.values()) + cut}
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


def count_rows(max_length: int, examples: Sequence[Example], cut: Collection[int]) -> None:
    """Count rows in the innermost :func:`counting` block, if any."""
    if (truncation := _COUNTING.get()) is not None:
        truncation.add(max_length, examples, cut)


def count_stream(max_length: int, rows: int, cut: int) -> None:
    """Count rows of a stream in the innermost :func:`counting` block, if any."""
    if (truncation := _COUNTING.get()) is not None:
        truncation.add_counts(max_length, rows, cut)


@contextmanager
def counting() -> Iterator[Truncation]:
    """Count rows that are tokenised within the block; an inner block counts for itself alone."""
    truncation = Truncation()
    before = _COUNTING.set(truncation)
    try:
        yield truncation
    finally:
        _COUNTING.reset(before)
