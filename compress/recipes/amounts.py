"""Amounts of ``--heads``, ``--ffn``, ``--layers`` and ``--hidden``. They are what is removed: ``60%`` removes 60%."""

import math
import re
from collections.abc import Sequence

from compress.errors import CompressError

MOST = "max"
_EXAMPLES = {"--layers": "2", "--hidden": "64"}


def _allowed(option: str) -> str:
    return f"give a share such as 60% or 0.6, or a count such as {_EXAMPLES.get(option, '40')}"


def units_to_remove(option: str, text: str, counts: Sequence[int], unit: str, *, keep: int = 1) -> int:
    """Return how many units an option asks to remove.

    ``60%`` and ``0.6`` (a decimal point) are shares of all units, rounded to the nearest one; ``40`` is a count;
    ``max`` is as many as may be removed.

    Args:
        option: such as ``--heads``, for messages.
        text: what the user typed.
        counts: units of each layer that are there now.
        unit: what they are called, in the plural.
        keep: how many every layer keeps at least.

    Raises:
        CompressError: not an amount, nothing or everything, or more than the layers can give.
    """
    total = sum(counts)
    asked = parse_amount(option, text)
    most = sum(max(0, count - keep) for count in counts)
    if asked == MOST and most:
        return most
    wanted = asked if isinstance(asked, int) else math.floor(float(asked) * total + 0.5) if asked != MOST else 0
    if wanted < 1:
        raise CompressError(f"{option} {text} removes none of the model's {total} {unit}; {_allowed(option)}")
    if not most:
        raise CompressError(
            f"{option} {text}: every layer keeps {keep} {unit}, and none has more; keep fewer, or leave {option} out"
        )
    if wanted > most:
        stays = "one" if keep == 1 else str(keep)
        kept = f"each of its {len(counts)} layers keeps at least {stays}" if len(counts) > 1 else f"{stays} must stay"
        raise CompressError(
            f"{option} {text} removes {wanted} of the model's {total} {unit}, but {kept}; give at most {most} "
            f"({math.floor(100 * most / total)}%)"
        )
    return wanted


def parse_amount(option: str, text: str) -> int | float | str:
    """Return the count, the share between 0 and 1, or ``max``.

    Raises:
        CompressError: none of these, or a share that is out of bounds.
    """
    if text.strip() == MOST:
        return MOST
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*|\s*(\d*\.\d+|\d+\.\d*)\s*|\s*(\d+)\s*", text)
    if match is None:
        raise CompressError(f"{option} {text} is neither a share nor a count; {_allowed(option)}")
    percent, share, count = match.groups()
    if count is not None:
        return int(count)
    part = float(percent) / 100 if percent is not None else float(share)
    if not 0 < part < 1:
        raise CompressError(f"{option} {text} is not between 0% and 100% (both excluded); {_allowed(option)}")
    return part
