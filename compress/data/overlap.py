"""Overlap: no row may be in two of train, unlabelled, validation and test data; splits that keep fragments together.

A few rows that are in two roles are an accident of the data: without them in the earlier role a model learns the same,
and what the later role says is as true. Many are another matter: files were mixed up, or split so that rows much like
those of the later role are left in the earlier one.
"""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias, get_args

from compress.data.examples import Example, Overlap, content_sha256, describe_rows, row_keys, words
from compress.data.sources import TextSource
from compress.errors import refuse
from compress.progress import logger

RoleData: TypeAlias = Sequence[Example] | TextSource
FITTING = ("train", "unlabeled")
HELD_OUT = ("validation", "test")
_NAMED = 10  # rows that are left out, by their numbers
_NOTHING: list[Example] | TextSource = []


@dataclass(frozen=True)
class CheckedRoles:
    """The sets as they may be used, and what was left out of each.

    ``sets`` has the keys that were given: lists stay lists, streamed sources become sources that skip the rows that are
    left out. ``left_out`` has, by role, what a manifest records of them, beside the fingerprint of a list as it was
    given: how many, the numbers of the first, from 1, and in which roles they are.
    """

    sets: dict[str, list[Example] | TextSource]
    rows: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)

    def describe(self) -> str:
        """Return one line to show: ``train 1,000 rows (2 left out), test 500 rows``."""
        left_out = {role: f" ({found['left_out']['rows']:,} left out)" for role, found in self.left_out.items()}
        return ", ".join(f"{role} {count:,} rows{left_out.get(role, '')}" for role, count in self.rows.items())

    def described(self) -> list[dict[str, Any]]:
        """Return an entry of a manifest for every role that is a list."""
        lists = {role: rows for role, rows in self.sets.items() if isinstance(rows, list)}
        return [entry | self.left_out.get(entry["role"], {}) for entry in describe_rows(lists)]


def check_roles(roles: Mapping[str, RoleData], overlap: Overlap = "few") -> CheckedRoles:
    """Leave rows that occur in two roles, compared as normalised text, out of the earlier one; or refuse them.

    The fitting roles ``train`` and ``unlabeled`` may share rows. Neither may share any with
    ``validation`` or ``test``, nor ``validation`` with ``test``. Each source is read once; of its rows only the keys
    are kept, eight bytes each.

    Args:
        roles: ``train``, ``unlabeled``, ``validation``, ``test``, as far as there are any.
        overlap: see :class:`compress.data.LabelledData`. Fitting roles lose rows of validation and test, validation
            those of test.

    Raises:
        CompressError: for overlap that is not left out (with its count and one row), for one file in two roles, for a
            role left empty.
    """
    import numpy as np

    refuse((overlap not in get_args(Overlap), f"overlap {overlap!r} is not known; use {', '.join(get_args(Overlap))}"))
    _refuse_same_source(roles)
    held, rows = dict[str, Any](), dict.fromkeys(roles, 0)
    sets, left_out = dict.fromkeys(roles, _NOTHING), dict[str, dict[str, Any]]()
    for role in sorted(roles, key=("test", "validation", *FITTING).index):
        data = roles[role]
        keys = row_keys(data) if isinstance(data, Sequence) else data.keys()
        hits = {name: hit for name, known in held.items() if (hit := np.isin(keys, known)).any()}
        is_out = np.any([np.zeros(len(keys), dtype=bool), *hits.values()], axis=0)
        out = is_out.nonzero()[0]
        rows[role] = len(keys) - len(out)
        refuse(
            (not len(keys), f"The {role} set is empty: give a file with at least one row."),
            (
                not rows[role],
                f"All {len(out):,} rows of {role} also occur in {' and '.join(hits)}, so that none is left to use: "
                f"give other data for {role}.",
            ),
        )
        if isinstance(data, Sequence):
            sets[role] = list(itertools.compress(data, ~is_out))
        else:
            sets[role] = data.without(frozenset(int(key).to_bytes(8, "big") for key in keys[out])) if hits else data
        if hits:
            shared = {name: int(np.isin(held[name], keys[out]).sum()) for name in hits}
            others = " and ".join(f"{name} (there {shared[name]:,} of {len(held[name]):,})" for name in hits)
            first = (out[:_NAMED] + 1).tolist()
            said = f"{len(out):,} of the {len(keys):,} rows of {role} also occur in {others}"
            few = _is_few(len(out), len(keys)) and all(_is_few(shared[name], len(held[name])) for name in hits)
            mixed = "so many mean that files or their split are mixed up: " if overlap == "few" else ""
            refuse(
                (
                    overlap == "refuse" or (overlap == "few" and not few),
                    f"{said}, the first as row {first[0]:,} of {role}; {mixed}give other files, or say --drop-overlap "
                    f'(in a study overlap = "drop") to leave them out of {role}',
                )
            )
            which = f"{', '.join(map(str, first))}{', ...' * (len(out) > len(first))}"
            advice = " (--refuse-overlap refuses them)" if overlap == "few" else ""
            logger.warning("%s; left out of %s: row %s%s", said, role, which, advice)
            given = {"given_sha256": content_sha256(data)} if isinstance(data, Sequence) else {}
            left_out[role] = {**given, "left_out": {"rows": len(out), "first": first, "also_in": shared}}
        if role in HELD_OUT:
            held[role] = keys
    return CheckedRoles(sets, rows, left_out)


def _is_few(count: int, rows: int) -> bool:
    """Tell whether so many of the rows are few: 1%, of fewer than 300 rows 3, and of fewer than 30 a tenth."""
    return count <= max(rows // 100, min(3, rows // 10))


def _refuse_same_source(roles: Mapping[str, RoleData]) -> None:
    """Raise where one file (or one split of it) plays two roles that must be apart."""
    for held, role in itertools.product(HELD_OUT, (*FITTING, "validation")):
        one, other = roles.get(role, []), roles.get(held, []) if role != held else []
        if isinstance(one, Sequence) or isinstance(other, Sequence):
            shown = "the same rows" if one is other else ""
        else:
            shown = f"the same file, {one.name}" if one.identity & other.identity else ""
        refuse(
            (
                shown,
                f"{role} and {held} are {shown}: give each its own, because what was fitted or chosen on some rows "
                "cannot be judged on them.",
            )
        )


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
    refuse(
        (
            not held or len(held) == len(order),
            f"No {share:.0%} of {len(examples):,} rows can be held out without parting a sentence from its fragments: "
            "give a validation file, or another share.",
        )
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
        text, pairs = f" {' '.join(words)} ", list(pairwise(words))
        if pairs:
            places = min((by_pair.get(pair, []) for pair in pairs), key=len)
            root = next((place for place in places if text in roots[place]), None)
        else:
            root = by_word.get(words[0]) if words else empty
        if root is None:
            root = len(roots)
            roots.append(text)
            empty = root if not words else empty
            for word in words:
                by_word.setdefault(word, root)
            for pair in dict.fromkeys(pairs):
                by_pair.setdefault(pair, []).append(root)
        groups[index] = root
    return groups
