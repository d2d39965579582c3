"""Overlap check: no row may be in two of train, unlabelled, validation and test data."""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from compress.data.examples import Example, among, row_key, row_keys
from compress.data.text_source import TextSource
from compress.errors import CompressError

RoleData: TypeAlias = Sequence[Example] | TextSource
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
    ``validation`` or ``test``, nor ``validation`` with ``test``. Each source is read once; of its rows only the keys
    are kept, eight bytes each.

    Args:
        roles: ``train``, ``unlabeled``, ``validation``, ``test``, as far as there are any.
        drop_overlap: drop instead of raising: fitting roles lose rows of validation and test,
            validation those of test.

    Raises:
        CompressError: for overlap (with its count and one row), for one file in two roles, for a role
            left empty.
    """
    _refuse_same_source(roles)
    held: dict[str, frozenset[bytes]] = {}
    sets, rows, dropped = dict.fromkeys(roles, _NOTHING), dict.fromkeys(roles, 0), dict.fromkeys(roles, 0)
    for role in sorted(roles, key=("test", "validation", *FITTING).index):
        data = roles[role]
        keys = row_keys(data) if isinstance(data, Sequence) else data.keys()
        hits = {name: among(keys, known) for name, known in held.items()}
        met = {name: (int(hit.sum()), int(hit.argmax()) + 1) for name, hit in hits.items() if hit.any()}
        dropped[role] = int(functools.reduce(operator.or_, hits.values()).sum()) if met else 0
        rows[role] = len(keys) - dropped[role]
        if not rows[role]:
            raise CompressError(
                f"All {dropped[role]:,} rows of {role} also occur in {' and '.join(met)}, so that none is "
                f"left to use: give other data for {role}."
                if dropped[role]
                else f"The {role} set is empty: give a file with at least one row."
            )
        if met and not drop_overlap:
            raise _overlap_error(role, rows[role] + dropped[role], met)
        sets[role] = _without(data, frozenset[bytes]().union(*held.values()) if met else frozenset())
        if role in HELD_OUT:
            held[role] = frozenset(int(key).to_bytes(8, "big") for key in keys)
    return CheckedRoles(sets, rows, dropped)


def _overlap_error(role: str, rows: int, met: Mapping[str, tuple[int, int]]) -> CompressError:
    name, (count, first) = max(met.items(), key=lambda item: item[1][0])
    also = "".join(f", and {other} in {held}" for held, (other, _) in met.items() if held != name)
    return CompressError(
        f"{count:,} of the {rows:,} rows of {role} also occur in {name}{also} (the first is row {first:,} of "
        f"{role}), so results on {name} would mean nothing: say --drop-overlap to leave them out of {role}."
    )


def _without(data: RoleData, keys: frozenset[bytes]) -> list[Example] | TextSource:
    if isinstance(data, Sequence):
        return [example for example in data if not keys or row_key(example) not in keys]
    return data.without(keys) if keys else data


def _refuse_same_source(roles: Mapping[str, RoleData]) -> None:
    """Raise where one file (or one split of it) plays two roles that must be apart."""
    pairs = [(role, held) for held in HELD_OUT for role in (*FITTING, "validation") if role != held]
    for role, held in pairs:
        one, other = roles.get(role, []), roles.get(held, [])
        if isinstance(one, Sequence) or isinstance(other, Sequence):
            shown = "the same rows" if one is other else ""
        else:
            shown = f"the same file, {one.name}" if one.identity & other.identity else ""
        if shown:
            raise CompressError(
                f"{role} and {held} are {shown}: give each its own, because what was fitted or chosen on some rows "
                "cannot be judged on them."
            )
