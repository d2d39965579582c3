"""Budgets: limits on accuracy, speed, size and memory, from a TOML file or from options."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from compress.errors import CompressError
from compress.files import read_toml
from compress.gating.selectors import Selector
from compress.recipes import parse

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def size_in_bytes(text: str | int) -> int:
    """Return a size such as ``"30MB"``, ``"1.5 GiB"`` or ``30000000`` in bytes.

    Raises:
        ValueError: it is not a size above 0.
    """
    match = _SIZE.fullmatch(str(text).strip())
    unit = match and _UNITS.get(match[2].lower())
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 1:
        raise ValueError(f'{text!r} is not a size above 0, such as "30MB", "512 KiB" or a number of bytes')
    return size


@dataclass(frozen=True)
class GateBudget(Selector):
    """Limits on the lines that a selector finds; a limit that is not given is not checked.

    ``max_accuracy_drop`` is in points of the metric against the teacher, ``min_metric`` and ``max_calibration_error``
    are fractions; speed-ups are against the teacher in torch. ``max_size`` is of the weights on disk, ``max_memory`` of
    the model above what its libraries hold. ``over_seeds`` judges the mean over training seeds instead of each model.
    """

    max_accuracy_drop: float | None = None
    min_metric: float | None = None
    max_calibration_error: float | None = None
    min_speedup: float | None = None
    min_speedup_with_tokenizer: float | None = None
    max_p95_ms: float | None = None
    max_size: str | int | None = None
    max_memory: str | int | None = None
    over_seeds: bool = False

    def limits(self) -> dict[str, float]:
        """Return the limits that are given, sizes in bytes."""
        given = {name: getattr(self, name) for name in LIMITS}
        return {
            name: size_in_bytes(value) if name in _SIZES else value
            for name, value in given.items()
            if value is not None
        }

    def faults(self) -> list[str]:
        found = super().faults()
        given = {name: getattr(self, name) for name in LIMITS if getattr(self, name) is not None}
        if not given:
            found.append(f"no limit is given; give one or more of {', '.join(LIMITS)}")
        for name, value in given.items():
            if name in _SIZES:
                try:
                    size_in_bytes(value)
                except ValueError as error:
                    found.append(f"{name} = {error}")
            else:
                low, high, unit = LIMITS[name]
                if not low <= value <= high:
                    found.append(f"{name} = {value} is not {unit}")
        if self.over_seeds and (unfit := sorted(set(given) - {*OVER_SEEDS})):
            found.append(f"over_seeds is for {' and '.join(OVER_SEEDS)}, not for {', '.join(unfit)}; use two budgets")
        return found


_ABOVE_ZERO = math.ulp(0.0)
_LARGEST = math.nextafter(math.inf, 0)
_SIZES = ("max_size", "max_memory")
# The lowest and highest value a limit may have, and what it is.
LIMITS: dict[str, tuple[float, float, str]] = {
    "max_accuracy_drop": (0, 100, "a number of percentage points from 0 to 100, such as 1.0"),
    "min_metric": (-1, 1, "a metric as a fraction, such as 0.88 for 88%"),
    "max_calibration_error": (0, 1, "a fraction from 0 to 1, such as 0.05"),
    "min_speedup": (_ABOVE_ZERO, _LARGEST, "a ratio above 0, such as 5 for five times as fast"),
    "min_speedup_with_tokenizer": (_ABOVE_ZERO, _LARGEST, "a ratio above 0, such as 5 for five times as fast"),
    "max_p95_ms": (_ABOVE_ZERO, _LARGEST, "a number of milliseconds above 0"),
    "max_size": (1, _LARGEST, "a size"),
    "max_memory": (1, _LARGEST, "a size"),
}
OVER_SEEDS = ("max_accuracy_drop",)


@dataclass(frozen=True)
class Tolerance(Selector):
    """How far the lines that a selector finds may fall behind older results.

    ``max_drop`` is in points of the metric, ``max_slowdown`` a share of the speed-up, on the same host only.
    """

    max_drop: float = 1.0
    max_slowdown: float = 0.1

    def faults(self) -> list[str]:
        found = super().faults()
        if not 0 <= self.max_drop <= 100:
            found.append(f"max_drop = {self.max_drop} is not a number of percentage points from 0 to 100, such as 1.0")
        if not 0 <= self.max_slowdown < 1:
            found.append(f"max_slowdown = {self.max_slowdown} is not a share from 0 to below 1, such as 0.1")
        return found


@dataclass(frozen=True)
class BudgetFile:
    """A file of budgets: ``[[budget]]`` tables, and ``[baseline]``."""

    budget: tuple[GateBudget, ...] = ()
    baseline: Tolerance = Tolerance()


def read_budgets(path: str | Path) -> BudgetFile:
    """Read a file of budgets.

    Raises:
        CompressError: it is missing, not TOML, or has faults; all of them are listed.
    """
    path = Path(path)
    if not path.exists():
        raise CompressError(f"{path} does not exist; docs/gate.md shows what a file of budgets looks like")
    table = read_toml(path)
    found = parse(BudgetFile, table, source=str(path))
    if not found.budget and "baseline" not in table:
        raise CompressError(f"{path} holds no [[budget]]; docs/gate.md shows what a file of budgets looks like")
    return found
