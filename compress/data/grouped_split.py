"""Split examples so that a sentence and its fragments stay on one side."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from compress.data.examples import Example, words
from compress.errors import CompressError


def grouped_split(examples: Sequence[Example], share: float, *, seed: int) -> tuple[list[Example], list[Example]]:
    """Split into (train, validation) so that a sentence and its fragments stay on one side.

    Rows are taken from the longest to the shortest. A row whose words occur, in order and together, in
    an earlier sentence belongs to the first such sentence's group; otherwise it founds a group. Whole
    groups are held out at random until ``share`` of the rows is reached. A fragment of several
    sentences can live in one group only, that of the longest of them: a short phrase such as "the film"
    may stay in train although a held-out sentence contains it, but equal rows (after normalisation)
    never part. Of a pair, the first text decides.

    Args:
        examples: the rows, in any order; both parts keep it.
        share: the share of rows to hold out, between 0 and 1.
        seed: the same seed, rows and order give the same split.
    """
    groups = _groups([words(example.text) for example in examples])
    sizes = Counter(groups)
    order = sorted(sizes)
    random.Random(seed).shuffle(order)
    target = share * len(examples)
    held, count = set[int](), 0
    for group in order:
        # A giant group would overshoot; pass it by.
        if count < target and count + sizes[group] <= max(1.25 * target, 1):
            held.add(group)
            count += sizes[group]
    if not held or len(held) == len(order):
        raise CompressError(
            f"No {share:.0%} of {len(examples):,} rows can be held out without parting a sentence from its fragments: "
            "give a validation file, or another share."
        )
    parts: tuple[list[Example], list[Example]] = ([], [])
    for example, group in zip(examples, groups, strict=True):
        parts[group in held].append(example)
    return parts


def _groups(rows: Sequence[tuple[str, ...]]) -> list[int]:
    """Return each row's group: the index of its root in ``roots``.

    Roots are indexed by their pairs of neighbouring words; a row is looked for only where its rarest
    pair occurs.
    """
    groups = [0] * len(rows)
    roots: list[str] = []  # with a space around each word
    by_word: dict[str, int] = {}  # the first root with this word
    by_pair: dict[tuple[str, str], list[int]] = {}  # the roots with this pair, ascending
    empty: int | None = None
    for index in sorted(range(len(rows)), key=lambda i: (-len(rows[i]), rows[i])):
        words = rows[index]
        root = by_word.get(words[0]) if len(words) == 1 else _first_root(words, roots, by_pair) if words else empty
        if root is None:
            root = len(roots)
            roots.append(f" {' '.join(words)} ")
            empty = root if not words else empty
            for word in words:
                by_word.setdefault(word, root)
            for pair in dict.fromkeys(pairwise(words)):
                by_pair.setdefault(pair, []).append(root)
        groups[index] = root
    return groups


def _first_root(
    words: tuple[str, ...], roots: Sequence[str], by_pair: Mapping[tuple[str, str], Sequence[int]]
) -> int | None:
    places = [by_pair.get(pair, ()) for pair in pairwise(words)]
    text = f" {' '.join(words)} "
    return next((root for root in min(places, key=len) if text in roots[root]), None)
