"""Select the results that a budget applies to: glob patterns on names, exact values of settings."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from compress.benchmarking.results.files import Result
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError, did_you_mean

_PATTERNS = ("model", "runtime", "device", "data")
_NUMBERS = ("threads", "batch_size", "length")


@dataclass(frozen=True)
class Selector:
    """Which lines are meant: patterns such as ``bilstm*`` on names; a number that is not given is not asked for.

    A pattern for ``model`` finds models only; a teacher, control, baseline, competitor or reference model is meant
    where ``model`` is its whole name. Without ``batch_size`` it is the smallest that was measured, which stands for
    latency; without ``length`` it is the data's own rows.
    """

    model: str = "*"
    runtime: str = "*"
    device: str = "*"
    data: str = "*"
    threads: int | None = None
    batch_size: int | None = None
    length: int | None = None

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        found = [f"{name} is empty; leave it out to mean every one" for name in _PATTERNS if not getattr(self, name)]
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return found + [f"{name} = {n} must be at least 1" for name, n in numbers.items() if n is not None and n < 1]

    def describe(self) -> str:
        """Return the selectors that are not left open, as they are written in a file."""
        given = {field.name: getattr(self, field.name) for field in fields(Selector)}
        asked = [f"{name} = {value!r}" for name, value in given.items() if value != getattr(Selector, name)]
        return ", ".join(asked) or "no selector"


def select(selector: Selector, rows: Sequence[Result], *, prefix: str) -> list[Measurement]:
    """Return one line for each configuration that is meant.

    Raises:
        CompressError: nothing is meant; the message says by which selector, and what there is.
    """
    left = list(rows)
    for name in (*_PATTERNS, "threads", "length"):
        wanted = getattr(selector, name)
        if name == "threads" and wanted is None:
            continue
        kept = [row for row in left if is_meant(row.small_batch, name, wanted)]
        if not kept:
            raise _nothing(selector, name, [*dict.fromkeys(_shown(row.small_batch, name) for row in left)], prefix)
        left = kept
    if selector.batch_size is None:
        return [row.small_batch for row in left]
    lines = [line for row in left for line in row.lines if line.batch_size == selector.batch_size]
    if not lines:
        sizes = {line.batch_size for row in left for line in row.lines}
        raise _nothing(selector, "batch_size", sorted(map(str, sizes), key=int), prefix)
    return lines


def is_meant(line: Measurement, name: str, wanted: Any) -> bool:
    """Tell whether a line is one that a selector's value asks for."""
    value = getattr(line, name)
    if value == wanted or name not in _PATTERNS:
        return bool(value == wanted)
    return fnmatchcase(value, wanted) and (name != "model" or line.is_compressed)


def _shown(line: Measurement, name: str) -> str:
    """Return a value for a list of what there is; of a model its kind too, as patterns find models only."""
    value = getattr(line, name)
    if name == "length" and value is None:
        return "the data's own rows"
    return f"{value} ({line.kind})" if name == "model" and line.kind != "model" else str(value)


def _nothing(selector: Selector, name: str, there: Sequence[str], prefix: str) -> CompressError:
    asked = getattr(selector, name)
    wanted = f"no line with {name} {asked!r}" if asked not in (None, "*") else f"no line to judge by {name}"
    return CompressError(
        f"{prefix}the results hold {wanted} ({selector.describe()}); in them {name} is {', '.join(there)}."
        f"{did_you_mean(str(asked), there)}"
    )
