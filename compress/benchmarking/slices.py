"""Slices: parts of the test rows that are judged by themselves too, by the values of a column or by length.

A slice is its name and which of N rows are of it, bool ``[N]``.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from compress.data import Example
from compress.errors import refuse

MOST_VALUES = 100  # of a column


def slices_by_column(rows: Sequence[Example], columns: Sequence[str], name: str) -> dict[str, np.ndarray]:
    """Return a slice for each value of each column.

    Args:
        rows: whose ``values`` are their cells in these columns.
        name: of the rows, for messages.

    Raises:
        CompressError: a column is missing, or has too many values.
    """
    found: dict[str, np.ndarray] = {}
    for number, column in enumerate(columns):
        asked = f"--slice-column {column}: {name}"
        missing = f"{asked} was read without this column; give a file or table that has it"
        refuse((any(len(row.values) <= number for row in rows), missing))
        cells = np.array([row.values[number] for row in rows])
        values = np.unique(cells)
        many = f"{asked} has {len(values):,} values there, and at most {MOST_VALUES} make slices"
        refuse((len(values) > MOST_VALUES, f"{many}; choose a column of groups, such as a language"))
        found |= {f"{column}={value}": cells == value for value in values}
    return found


def slices_by_length(tokens: Sequence[int], limits: Sequence[int]) -> dict[str, np.ndarray]:
    """Return a slice for the rows up to each number of tokens that are longer than the one before, and for the rest."""
    counts, limits = np.array(tokens), sorted(set(limits))
    found = {
        f"{above + 1} to {most} tokens": (above < counts) & (counts <= most) for above, most in pairwise([0, *limits])
    }
    return {**found, f"more than {limits[-1]} tokens": counts > limits[-1]} if limits else {}
