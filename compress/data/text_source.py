"""Text sources: the protocol for streams of examples, and subsets of a source."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from compress.data.examples import Example, row_key, row_keys

if TYPE_CHECKING:
    import numpy as np


@runtime_checkable
class TextSource(Protocol):
    """A stream of labelled or unlabelled examples; every ``iter()`` starts a new pass.

    ``identity`` names the files or rows that are read: two sources that share a part of it hold the same data. A class
    that derives from this one defines ``name``, ``identity`` and ``__iter__``; the other methods follow from them.
    """

    name: str
    identity: frozenset[Any]

    def __iter__(self) -> Iterator[Example]: ...

    def without(self, keys: frozenset[bytes]) -> "TextSource":
        """Return this source without the rows that have one of these keys; nothing is read yet."""
        return Subset(self, excluded=keys)

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
    """Rows of another source: ``spread`` rows of so many, without the ``excluded`` keys."""

    def __init__(
        self,
        source: TextSource,
        *,
        spread: tuple[int, int] | None = None,
        excluded: frozenset[bytes] = frozenset(),
    ) -> None:
        self.source = source
        self.spread = spread
        self.excluded = excluded
        self.name = f"{source.name} ({spread[0]:,} of {spread[1]:,} rows)" if spread else source.name
        self.identity = source.identity

    def __iter__(self) -> Iterator[Example]:
        examples, spread = iter(self.source), self.spread
        if spread:
            examples = (example for number, example in enumerate(examples) if is_spread(number, *spread))
        if self.excluded:
            return (example for example in examples if row_key(example) not in self.excluded)
        return examples

    def describe(self) -> str:
        return self.name + self.source.describe().removeprefix(self.source.name)
