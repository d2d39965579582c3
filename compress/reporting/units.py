"""Numbers as people read them: every figure of a report, a table or a verdict is written by one of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shown(line: Mapping[str, Any], key: str = "metric", *, digits: int = 2) -> str:
    """Return a metric as people write it: accuracy and F1 in percent, correlations as fractions."""
    value = float(line[key])
    return f"{100 * value:.{digits}f}%" if in_percent(line["metric_name"]) else f"{value:.{digits + 2}f}"


def in_percent(metric: str) -> bool:
    """Tell whether a metric is written in percent."""
    return metric in {"accuracy", "f1", "macro-f1"}


def points(value: float) -> str:
    """Return a difference in points with its sign and a true minus: ``−0.57``."""
    return f"{value:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")


def megabytes(size_bytes: float) -> str:
    """Return a size with two significant digits at least: ``4.4 MB``, ``91 MB``."""
    size = size_bytes / 1e6
    return f"{size:.2f} MB" if size < 1 else f"{size:.1f} MB" if size < 20 else f"{size:,.0f} MB"


def times(value: float) -> str:
    """Return a ratio as ``×0.97``, ``×4.2`` or ``×46``."""
    return f"×{value:.2f}" if value < 9.995 else f"×{value:.1f}" if value < 99.95 else f"×{value:,.0f}"


def milliseconds(value: float) -> str:
    """Return a duration with three significant digits: ``0.185 ms``, ``9.02 ms``, ``237 ms``."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} ms"


def count(value: float) -> str:
    """Return a large number in short: ``22.7 M``, ``1.1 M``, ``860 k``."""
    return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value / 1e3:.0f} k" if value >= 1e4 else f"{value:,.0f}"
