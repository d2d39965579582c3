"""Text sources: the protocol for streams of examples, and the subsets that every source can give of itself."""

import itertools
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from compress.data.examples import Example, row_key


@runtime_checkable
class TextSource(Protocol):
    """A stream of labelled or unlabelled examples; every ``iter()`` starts a new pass.

    ``identity`` names the files or rows that are read: two sources that share a part of it hold the same data.
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> frozenset[Any]: ...

    def __iter__(self) -> Iterator[Example]: ...

    def without(self, keys: frozenset[bytes]) -> "TextSource":
        """Return this source without the rows that have one of these keys; nothing is read yet."""
        ...

    def sample(self, rows: int) -> "TextSource":
        """Return ``rows`` rows spread evenly over this source; reads it once, to count.

        The first rows of a file are rarely like the rest: pools are sorted by date, label or origin.
        """
        ...

    def describe(self) -> str:
        """Return one line to show: the name, and how the rows were read."""
        ...


class IterableSource:
    """Mixin of the text sources: all that follows from iteration, name and identity."""

    def without(self: TextSource, keys: frozenset[bytes]) -> "TextSource":
        return Subset(self, excluded=keys)

    def sample(self: TextSource, rows: int) -> "TextSource":
        total = sum(1 for _ in self)
        return self if total <= rows else Subset(self, spread=(rows, total))

    def describe(self: TextSource) -> str:
        return self.name


class Subset(IterableSource):
    """Rows of another source: its first ``limit``, or ``spread`` rows of so many, without the ``excluded`` keys."""

    def __init__(
        self,
        source: TextSource,
        *,
        limit: int | None = None,
        spread: tuple[int, int] | None = None,
        excluded: frozenset[bytes] = frozenset(),
    ) -> None:
        self.source = source
        self.limit = limit
        self.spread = spread
        self.excluded = excluded
        self.name = f"{source.name} ({spread[0]:,} of {spread[1]:,} rows)" if spread else source.name
        self.identity = source.identity

    def __iter__(self) -> Iterator[Example]:
        examples: Iterator[Example] = itertools.islice(self.source, self.limit)
        if self.spread:
            rows, total = self.spread
            numbered = enumerate(examples)
            examples = (e for n, e in numbered if n * rows // total != (n - 1) * rows // total)
        if self.excluded:
            return (example for example in examples if row_key(example) not in self.excluded)
        return iter(examples)

    def describe(self) -> str:
        return self.name + self.source.describe().removeprefix(self.source.name)
