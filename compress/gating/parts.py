"""Limits on parts of the test rows: on every class or slice, or on those that a budget names.

That all K parts hold is an intersection of K tests, each at its own 95% interval, which errs no more often than one of
them (Berger 1982, "Multiparameter hypothesis testing and acceptance sampling"). But who looks at K parts finds one that
is worse by chance: a limit is broken by an interval of confidence 1 - 0.05 / K (Bonferroni), for recall Wilson's, else
the 95% interval of the line, wider by the ratio of the quantiles of the normal distribution.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

from compress.benchmarking.results import verdict
from compress.benchmarking.results.formatting import in_points, shown
from compress.benchmarking.results.schema import Measurement
from compress.errors import did_you_mean, refuse
from compress.evaluation.metrics import CONFIDENCE
from compress.gating.judgement import (
    BROKEN,
    HOLDS,
    UNDECIDED,
    Figures,
    Judgement,
    Limit,
    as_loss,
    lost,
)
from compress.tasks import metrics_by_name

MORE = "more examples of it would narrow it"


class _Kind(NamedTuple):
    """What a limit is on: the field of a line, and the keys there of the name of a part and of its figures."""

    field: str
    name: str
    figures: tuple[str, str, str]
    is_loss: bool
    metric: str  # empty: that of the line
    missing: str


_POINTS = ("difference_points", "low", "high")
_NO_CLASSES = "it has no classes; take the limit out"
_NO_SLICES = "it was measured without slices; use 'compress benchmark' with --slice-column NAME or --slice-length N"
_KINDS = {
    "max_drop_any_class": _Kind("classes", "label", _POINTS, True, "recall", _NO_CLASSES),
    "min_recall": _Kind("classes", "label", ("recall", "recall_low", "recall_high"), False, "recall", _NO_CLASSES),
    "max_drop_any_slice": _Kind("slices", "slice", _POINTS, True, "", _NO_SLICES),
    "min_metric_any_slice": _Kind("slices", "slice", ("metric", "metric_low", "metric_high"), False, "", _NO_SLICES),
}


def judge_parts(gate: str, given: float | Mapping[str, float], line: Measurement, subject: str) -> Iterator[Judgement]:
    """Yield the judgements of the parts that a table names, or that of the worst where a limit is on all.

    Raises:
        CompressError: the line has no such parts, or none of a name.
    """
    kind = _KINDS[gate]
    parts = {str(one[kind.name]): one for one in getattr(line, kind.field)}
    named = given if isinstance(given, Mapping) else dict.fromkeys(parts, given)
    unknown = next((name for name in named if name not in parts), None)
    refuse(
        (not parts, f"{gate} on {subject}: {kind.missing}"),
        (
            unknown is not None,
            f"{gate} names {unknown!r}, and {subject} has the {kind.field} {', '.join([*parts][:10])}."
            f"{did_you_mean(str(unknown), parts)}",
        ),
    )
    is_table = isinstance(given, Mapping)
    found = [
        _judge_part(
            Limit(gate, limit, f"{subject}, {name}" if is_table else subject), kind, line, parts[name], len(named)
        )
        for name, limit in named.items()
    ]
    ranks = [BROKEN, UNDECIDED, HOLDS]
    found.sort(key=lambda one: (ranks.index(one[0].outcome), one[1]))
    yield from (judgement for judgement, _ in (found if is_table else found[:1]))


def _judge_part(
    limit: Limit, kind: _Kind, line: Measurement, part: Mapping[str, Any], parts: int
) -> tuple[Judgement, float]:
    """Return the judgement of one of so many parts, and how far its figure is above the limit."""
    metric, of = kind.metric or line.metric_name or "", line.counted[1]
    if kind.field == "classes" and line.metric_name:
        of = metrics_by_name()[line.metric_name].counts or of
    form = lost if kind.is_loss else partial(shown, metric="accuracy" if kind.metric else metric)
    what = f"the loss of at most {in_points(limit.value)} of {metric}"
    what = what if kind.is_loss else f"the {metric} of at least {form(limit.value)}"
    what += f" in {part[kind.name]!r}"
    value, low, high = (part.get(name) for name in kind.figures)
    if value is None or low is None or high is None:
        earlier = kind.figures[1] not in part
        why = "an earlier version measured it; run 'compress benchmark' again" if earlier else "it has no interval"
        why += f" ({of}: {part['rows']:,})"
        return limit.because(what, UNDECIDED, why, count=part["rows"], of=of), -math.inf
    wide_low, wide_high = _wider(value, low, high, parts, 100.0 if kind.is_loss else 1.0)
    if kind.field == "classes" and not kind.is_loss and of == "examples":
        wide_low, wide_high = _wilson(value, part["rows"], parts)
    least = -limit.value if kind.is_loss else limit.value
    found = verdict.at_least(low, wide_high, least, MORE)
    holds = found.outcome == verdict.WITHIN
    figures: Figures = (value, low, high) if holds else (value, wide_low, wide_high)
    shown_figures: Figures = as_loss(figures) if kind.is_loss else figures
    together = f", of {parts} {kind.field} together" if parts > 1 and not holds else ""
    return limit.judged(what, shown_figures, found, form, part["rows"], of, together), value - least


def _quantile(parts: int = 1) -> float:
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / parts)


def _wider(value: float, low: float, high: float, parts: int, most: float) -> tuple[float, float]:
    """Return a 95% interval as one of so many together; no figure is beyond ``most``."""
    ratio = _quantile(parts) / _quantile()
    return max(-most, value - ratio * (value - low)), min(most, value + ratio * (high - value))


def _wilson(share: float, rows: int, parts: int) -> tuple[float, float]:
    """Return the interval of a share of so many rows, as one of so many together (Wilson 1927)."""
    z2 = _quantile(parts) ** 2
    centre, half = share + z2 / (2 * rows), math.sqrt(z2 * (share * (1 - share) / rows + z2 / (4 * rows**2)))
    return max(0.0, centre - half) / (1 + z2 / rows), min(1.0, (centre + half) / (1 + z2 / rows))
