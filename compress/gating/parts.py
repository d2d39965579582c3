"""Limits on parts of the test rows: on every class or slice, or on those that a budget names.

Who looks at K parts finds one that is worse by chance. So each is judged by an interval of confidence 1 - 0.05 / K
(Bonferroni): the 95% interval of the line, wider by the ratio of the quantiles of the normal distribution.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

from compress.benchmarking.results import verdict
from compress.benchmarking.results.formatting import in_points, plural, shown
from compress.benchmarking.results.schema import Measurement
from compress.errors import did_you_mean, refuse
from compress.evaluation.metrics import CONFIDENCE
from compress.gating.judgement import (
    BROKEN,
    HOLDS,
    OUTCOMES,
    UNDECIDED,
    Figures,
    Judgement,
    Limit,
    as_loss,
    lost,
    shown_interval,
)

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
    unknown = next((name for name in named if name not in parts), "")
    refuse(
        (not parts, f"{gate} on {subject}: {kind.missing}"),
        (
            unknown,
            f"{gate} names {unknown!r}, and {subject} has the {kind.field} {', '.join([*parts][:10])}."
            f"{did_you_mean(unknown, parts)}",
        ),
    )
    found = [
        _judge_part(Limit(gate, limit, subject), kind, line, parts[name], len(named)) for name, limit in named.items()
    ]
    ranks = [BROKEN, UNDECIDED, HOLDS]
    found.sort(key=lambda one: (ranks.index(one[0].outcome), one[1]))
    yield from (judgement for judgement, _ in (found if isinstance(given, Mapping) else found[:1]))


def _judge_part(
    limit: Limit, kind: _Kind, line: Measurement, part: Mapping[str, Any], parts: int
) -> tuple[Judgement, float]:
    """Return the judgement of one of so many parts, and how far its figure is above the limit."""
    metric, of = kind.metric or line.metric_name or "", line.counted[1]
    form = lost if kind.is_loss else partial(shown, metric="accuracy" if kind.metric else metric)
    what = f"the loss of at most {in_points(limit.value)} of {metric}"
    what = f"{what if kind.is_loss else f'the {metric} of at least {form(limit.value)}'} in {part[kind.name]!r}"
    value, low, high = (part.get(name) for name in kind.figures)
    if value is None or low is None or high is None:
        why = f"it has no interval ({plural(part['rows'], 'row')})"
        return limit.because(what, UNDECIDED, why, count=part["rows"], of=of), -math.inf
    tail, quantile = (1 - CONFIDENCE) / 2, NormalDist().inv_cdf
    wider = quantile(1 - tail / parts) / quantile(1 - tail)
    most = 100.0 if kind.is_loss else 1.0
    figures: Figures = value, max(-most, value - wider * (value - low)), min(most, value + wider * (high - value))
    least = -limit.value if kind.is_loss else limit.value
    found = verdict.at_least(*figures[1:], least, MORE)
    shown_figures: Figures = as_loss(figures) if kind.is_loss else figures
    together = f", of {parts} {kind.field} together" if parts > 1 else ""
    why = f"{form(shown_figures[0])} on {part['rows']:,} {of} ({shown_interval(form, *shown_figures[1:])}{together})"
    why += f"; {found.more}" if found.more else ""
    return limit.because(what, OUTCOMES[found.outcome], why, *shown_figures, part["rows"], of), value - least
