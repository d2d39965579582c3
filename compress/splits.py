"""Split roles: no row may play two of them (DESIGN, decision 8); fragments stay with their sentence."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias, Union

from compress.errors import CompressError
from compress.examples import Example, row_key, words

if TYPE_CHECKING:
    from compress.data import TextSource

RoleData: TypeAlias = Union[Sequence[Example], "TextSource"]
FITTING = ("train", "unlabeled")
HELD_OUT = ("validation", "test")
_NOTHING: list[Example] | TextSource = []


@dataclass(frozen=True)
class CheckedRoles:
    """The sets as they may be used, and what was dropped from each.

    ``sets`` has the keys that were given: lists stay lists, streamed sources become sources that skip
    the dropped rows.
    """

    sets: dict[str, list[Example] | TextSource]
    rows: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def describe(self) -> str:
        """Return one line to show: ``train 1,000 rows (2 dropped), test 500 rows``."""
        return ", ".join(
            f"{role} {count:,} rows" + (f" ({self.dropped[role]:,} dropped)" if self.dropped.get(role) else "")
            for role, count in self.rows.items()
        )


def check_roles(roles: Mapping[str, RoleData], *, drop_overlap: bool) -> CheckedRoles:
    """Refuse rows that occur in two roles, compared as normalised text; or drop them from the earlier role.

    The fitting roles ``train`` and ``unlabeled`` may share rows. Neither may share any with
    ``validation`` or ``test``, nor ``validation`` with ``test``. Each source is read once, in one
    streaming pass; only the keys of the held-out roles are kept, eight bytes a row.

    Args:
        roles: ``train``, ``unlabeled``, ``validation``, ``test``, as far as there are any.
        drop_overlap: drop instead of raising: fitting roles lose rows of validation and test,
            validation those of test.

    Raises:
        CompressError: for overlap (with its count and one row), for one file in two roles, for a role
            left empty.
    """
    unknown = set(roles) - {*FITTING, *HELD_OUT}
    if unknown:
        raise ValueError(f"unknown roles {sorted(unknown)}")
    _refuse_same_source(roles)
    keys: dict[str, frozenset[bytes]] = {}
    sets, rows, dropped = dict.fromkeys(roles, _NOTHING), dict.fromkeys(roles, 0), dict.fromkeys(roles, 0)
    for role in ("test", "validation", *FITTING):
        if role not in roles:
            continue
        held = dict(keys)
        met: dict[str, tuple[int, int]] = {}  # held-out role: rows also in it, the first of them
        own: set[bytes] = set()
        for row, example in enumerate(roles[role], start=1):
            key = row_key(example)
            hits = [name for name, known in held.items() if key in known]
            for name in hits:
                count, first = met.get(name, (0, row))
                met[name] = (count + 1, first)
            rows[role] += not hits
            dropped[role] += bool(hits)
            if role in HELD_OUT:
                own.add(key)
        if met and not drop_overlap:
            raise _overlap_error(role, rows[role] + dropped[role], met)
        if not rows[role]:
            raise CompressError(
                f"All {dropped[role]:,} rows of {role} also occur in {' and '.join(met)}, so that none is "
                f"left to use: give other data for {role}."
                if dropped[role]
                else f"The {role} set is empty: give a file with at least one row."
            )
        unwanted = frozenset[bytes]().union(*held.values())
        sets[role] = _without(roles[role], unwanted) if met else _kept(roles[role])
        if role in HELD_OUT:
            keys[role] = frozenset(own)
    return CheckedRoles(sets, rows, dropped)


def _overlap_error(role: str, rows: int, met: Mapping[str, tuple[int, int]]) -> CompressError:
    name, (count, first) = max(met.items(), key=lambda item: item[1][0])
    also = "".join(f", and {other} in {held}" for held, (other, _) in met.items() if held != name)
    return CompressError(
        f"{count:,} of the {rows:,} rows of {role} also occur in {name}{also} (the first is row {first:,} of "
        f"{role}), so results on {name} would mean nothing: say --drop-overlap to leave them out of {role}."
    )


def _kept(data: RoleData) -> list[Example] | TextSource:
    return list(data) if isinstance(data, Sequence) else data


def _without(data: RoleData, keys: frozenset[bytes]) -> list[Example] | TextSource:
    if isinstance(data, Sequence):
        return [example for example in data if row_key(example) not in keys]
    return data.without(keys)


def _refuse_same_source(roles: Mapping[str, RoleData]) -> None:
    """Raise where one file (or one split of it) plays two roles that must be apart."""
    for held in HELD_OUT:
        for role in (*FITTING, "validation"):
            if role == held or role not in roles or held not in roles:
                continue
            one, other = roles[role], roles[held]
            if isinstance(one, Sequence) or isinstance(other, Sequence):
                same = one is other
                shown = "the same rows"
            else:
                same = bool(one.identity & other.identity)
                shown = f"the same file, {one.name}"
            if same:
                raise CompressError(
                    f"{role} and {held} are {shown}: give each its own, because what was fitted or chosen "
                    "on some rows cannot be judged on them."
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
    if not 0 < share < 1:
        raise CompressError(f"The share to hold out is {share}, but it must lie between 0 and 1, such as 0.05.")
    groups = _groups([words(example.text) for example in examples])
    sizes: dict[int, int] = {}
    for group in groups:
        sizes[group] = sizes.get(group, 0) + 1
    order = sorted(sizes)
    random.Random(seed).shuffle(order)
    target = share * len(examples)
    held: set[int] = set()
    count = 0
    for group in order:
        if count >= target:
            break
        if count + sizes[group] <= max(1.25 * target, 1):  # a giant group would overshoot; pass it by
            held.add(group)
            count += sizes[group]
    if not held or len(held) == len(order):
        raise CompressError(
            f"No {share:.0%} of {len(examples):,} rows can be held out without parting a sentence from "
            "its fragments: "
            "give a validation file, or another share."
        )
    train = [example for example, group in zip(examples, groups, strict=True) if group not in held]
    validation = [example for example, group in zip(examples, groups, strict=True) if group in held]
    return train, validation


def _groups(rows: Sequence[tuple[str, ...]]) -> list[int]:
    """Return each row's group: the index of its root in ``roots``.

    Roots are indexed by their pairs of neighbouring words; a row is looked for only where its rarest
    pair occurs.
    """
    groups = [0] * len(rows)
    roots: list[tuple[str, ...]] = []
    by_word: dict[str, int] = {}  # the first root with this word
    by_pair: dict[tuple[str, str], list[tuple[int, int]]] = {}  # (root, position of the pair), roots ascending
    empty: int | None = None
    for index in sorted(range(len(rows)), key=lambda i: (-len(rows[i]), rows[i])):
        words = rows[index]
        root = by_word.get(words[0]) if len(words) == 1 else _first_root(words, roots, by_pair) if words else empty
        if root is None:
            root = len(roots)
            roots.append(words)
            empty = root if not words else empty
            for word in words:
                by_word.setdefault(word, root)
            for position, pair in enumerate(pairwise(words)):
                by_pair.setdefault(pair, []).append((root, position))
        groups[index] = root
    return groups


def _first_root(
    words: tuple[str, ...],
    roots: Sequence[tuple[str, ...]],
    by_pair: Mapping[tuple[str, str], Sequence[tuple[int, int]]],
) -> int | None:
    best: Sequence[tuple[int, int]] | None = None
    offset = 0
    for position, pair in enumerate(pairwise(words)):
        places = by_pair.get(pair)
        if places is None:
            return None
        if best is None or len(places) < len(best):
            best, offset = places, position
    matches: Iterator[int] = (
        root
        for root, place in best or ()
        if place >= offset and roots[root][place - offset : place - offset + len(words)] == words
    )
    return next(matches, None)
