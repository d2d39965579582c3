"""Rows that repeat others, in other words or in the same, within a role and across roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from compress.data import Example, row_keys
from compress.data.examples import plain_text
from compress.data.near_copies import near_pairs
from compress.evaluation.metrics import Array


@dataclass(frozen=True)
class Repeats:
    """Rows of a role that repeat one of a role, or an earlier one of their own.

    ``rows`` and ``copies`` ``[R]`` are numbers of rows among those of all roles, each row with the one that is most
    like it, and ``similarities`` ``[R]`` are 1 where the words are the same.
    """

    role: str
    within: str
    rows: Array
    copies: Array
    similarities: Array


def find_copies(roles: Mapping[str, Sequence[Example]]) -> tuple[list[Repeats], Array]:
    """Return the repeats of every two roles, and a number for each row ``[N]`` that it shares with what is like it."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = [row for each in roles.values() for row in each]
    _, first, text = np.unique(row_keys(rows), return_index=True, return_inverse=True)
    pairs, similarities = near_pairs([plain_text(rows[row]) for row in first])
    order = np.argsort(similarities, kind="stable")
    # Both directions; of a text's copies the most alike comes last, and stays where numbers are written over.
    one, other = np.concatenate([pairs[order], pairs[order, ::-1]]).T if len(pairs) else np.empty((2, 0), int)
    like = np.concatenate([similarities[order]] * 2)
    texts = len(first)
    ends = [*accumulate(map(len, roles.values()), initial=0)]
    spans = dict(zip(roles, zip(ends, ends[1:], strict=False), strict=True))
    first_in = {role: np.full(texts, -1) for role in roles}
    for role, (begin, end) in spans.items():
        first_in[role][text[begin:end][::-1]] = np.arange(begin, end)[::-1]
    found = list[Repeats]()
    for number, role in enumerate(roles):
        for within in [*roles][: number + 1]:
            there = first_in[within]
            usable = there[other] >= 0
            if role == within:
                usable &= (there[one] >= 0) & (there[other] < there[one])
            nearest, how_like = np.full(texts, -1), np.zeros(texts)
            nearest[one[usable]], how_like[one[usable]] = there[other[usable]], like[usable]
            own = np.arange(*spans[role])
            same = there[text[own]]
            exact = (same >= 0) & (same < own) if role == within else same >= 0
            copies = np.where(exact, same, nearest[text[own]])
            chosen = copies >= 0
            alike = np.where(exact, 1.0, how_like[text[own]])[chosen]
            found.append(Repeats(role, within, own[chosen], copies[chosen], alike))
    joined = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(texts, texts))
    return found, np.asarray(connected_components(joined, directed=False)[1][text])


def describe(repeats: Repeats, rows: Sequence[Example]) -> dict[str, Any]:
    """Return how many rows repeat others, and how many of them have another label than their copy."""
    exact = int((repeats.similarities == 1).sum())
    differ = sum(
        all(rows[one].is_labelled for one in (row, copy)) and {*rows[row].all_labels} != {*rows[copy].all_labels}
        for row, copy in zip(repeats.rows.tolist(), repeats.copies.tolist(), strict=True)
    )
    return {
        "role": repeats.role,
        "within": repeats.within,
        "exact": exact,
        "near": len(repeats.rows) - exact,
        "other_label": differ,
    }
