"""Budgets: limits on accuracy, speed, size and memory, from a TOML file or from options, and what they apply to."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import pydantic

from compress.benchmarking.results.files import Result
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError, did_you_mean, refuse
from compress.fields import validated
from compress.files import read_toml
from compress.recipes.parsing import Checked, parse, require
from compress.requests.measuring import LIMITS, OVER_SEEDS, BudgetLimits

_PATTERNS = ("model", "runtime", "device", "data")


def _not_empty(pattern: str, about: pydantic.ValidationInfo) -> str:
    require(pattern, f"{about.field_name} is empty; leave it out to mean every one")
    return pattern


Pattern = Annotated[str, pydantic.AfterValidator(_not_empty)]
FromOne = Annotated[int, pydantic.Field(ge=1)]


@validated
class Selector(Checked):
    """Which lines are meant: patterns such as ``bilstm*`` on names; a number that is not given is not asked for.

    A pattern for ``model`` finds models only; a teacher, control, baseline, competitor or reference model is meant
    where ``model`` is its whole name. Without ``batch_size`` it is the smallest that was measured, which stands for
    latency; without ``length`` it is the data's own rows.
    """

    model: Pattern = "*"
    runtime: Pattern = "*"
    device: Pattern = "*"
    data: Pattern = "*"
    threads: FromOne | None = None
    batch_size: FromOne | None = None
    length: FromOne | None = None


def select(selector: Selector, rows: Sequence[Result], *, prefix: str) -> list[Measurement]:
    """Return one line for each configuration that is meant.

    Raises:
        CompressError: nothing is meant; the message says by which selector, and what there is.
    """
    left = list(rows)
    for name in (*_PATTERNS, "threads", "length"):
        wanted = getattr(selector, name)
        kept = [row for row in left if is_meant(row.small_batch, name, wanted)]
        if not kept and not (name == "threads" and wanted is None):
            raise _nothing(selector, name, [_shown(row.small_batch, name) for row in left], prefix)
        left = kept or left
    if selector.batch_size is None:
        return [row.small_batch for row in left]
    every = [line for row in left for line in row.lines]
    lines = [line for line in every if line.batch_size == selector.batch_size]
    if not lines:
        raise _nothing(selector, "batch_size", sorted({line.batch_size for line in every}), prefix)
    return lines


def _shown(line: Measurement, name: str) -> str:
    """Return a value for a list of what there is; of a model its kind too, as patterns find models only."""
    value = getattr(line, name)
    if name == "length" and value is None:
        return "the data's own rows"
    return f"{value} ({line.kind})" if name == "model" and line.kind != "model" else str(value)


def is_meant(line: Measurement, name: str, wanted: Any) -> bool:
    """Tell whether a line is one that a selector's value asks for."""
    value = getattr(line, name)
    if value == wanted or name not in _PATTERNS:
        return bool(value == wanted)
    return fnmatchcase(value, wanted) and (name != "model" or line.is_compressed)


def _nothing(selector: Selector, name: str, values: Sequence[object], prefix: str) -> CompressError:
    """Return what is wrong with a selector that finds nothing: which one it is, and what there is."""
    given = {field.name: getattr(selector, field.name) for field in fields(Selector)}
    asked = [f"{key} = {value!r}" for key, value in given.items() if value != getattr(Selector, key)]
    value, there = given[name], list(dict.fromkeys(map(str, values)))
    refuse(
        (
            name == "model" and value in (None, "*"),
            f"{prefix}the results hold no compressed model to judge, but {', '.join(there)}: type --model NAME",
        )
    )
    wanted = f"no line with {name} {value!r}" if value not in (None, "*") else f"no line to judge by {name}"
    return CompressError(
        f"{prefix}the results hold {wanted} ({', '.join(asked) or 'no selector'}); in them {name} is "
        f"{', '.join(there)}.{did_you_mean(str(value), there)}"
    )


@validated
class GateBudget(Selector, BudgetLimits):
    """Limits on the lines that a selector finds; a limit that is not given is not checked.

    ``max_accuracy_drop`` is in points of the metric against the teacher, ``min_metric``, ``max_calibration_error``
    and ``max_truncated``
    are fractions; speed-ups are against the teacher in torch. ``max_size`` is of the weights on disk, ``max_memory`` of
    the model above what its libraries hold. ``over_seeds`` judges the mean over training seeds instead of each model.
    """

    def faults(self) -> Iterator[str]:
        if not self.limits():
            yield f"no limit is given; give one or more of {', '.join(LIMITS)}"
        if self.over_seeds and (unfit := sorted({*self.limits()} - {*OVER_SEEDS})):
            yield f"over_seeds is for {' and '.join(OVER_SEEDS)}, not for {', '.join(unfit)}; use two budgets"


@validated
class Tolerance(Selector):
    """How far the lines that a selector finds may fall behind older results.

    ``max_drop`` is in points of the metric, ``max_slowdown`` a share of the speed-up, on the same host only.
    """

    max_drop: float = 1.0
    max_slowdown: float = 0.1

    def faults(self) -> Iterator[str]:
        if not 0 <= self.max_drop <= 100:
            yield f"max_drop = {self.max_drop} is not a number of percentage points from 0 to 100, such as 1.0"
        if not 0 <= self.max_slowdown < 1:
            yield f"max_slowdown = {self.max_slowdown} is not a share from 0 to below 1, such as 0.1"


@validated
class BudgetFile:
    """A file of budgets: ``[[budget]]`` tables, and ``[baseline]``."""

    budget: tuple[GateBudget, ...] = ()
    baseline: Tolerance = Tolerance()


def read_budgets(path: str | Path) -> BudgetFile:
    """Read a file of budgets.

    Raises:
        CompressError: it is missing, not TOML, or has faults; all of them are listed.
    """
    path, advice = Path(path), "docs/gate.md shows what a file of budgets looks like"
    refuse((not path.exists(), f"{path} does not exist; {advice}"))
    table = read_toml(path)
    found = parse(BudgetFile, table, source=str(path))
    refuse((not found.budget and "baseline" not in table, f"{path} holds no [[budget]]; {advice}"))
    return found
